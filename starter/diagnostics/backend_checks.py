"""Checks of the backends.

The command requests the list of models from each backend, with the same request that workers send.
"""

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from batchwright.contracts.model_registry.backend_config import BackendConfig
from batchwright.contracts.model_registry.registry_config import GatewayConfig
from batchwright.database.errors import DatabaseError
from batchwright.database.postgres import open_database
from batchwright.inference.backend_client import InferenceClient
from batchwright.inference.client_pool import ClientPool, client_key
from batchwright.inference.discovery import ListingFailed, ModelListing
from batchwright.inference.registry.model_catalog import Catalog, CatalogEntry
from batchwright.settings import Settings, SettingsError
from batchwright.starter.diagnostics.checks import Clock
from batchwright.starter.diagnostics.clock_check import compare_clocks
from batchwright.starter.diagnostics.findings import Finding, Level, ok, problem, warning

_CONCURRENCY = 32
_PART = "backends"


@dataclass
class _BackendUnderTest:
    """A backend to check.

    Attributes:
        config: settings of the backend. A GatewayConfig means that the backend is a gateway: it serves all
            models in its list of models. With `any_model`, a gateway also serves models outside this list.
        models: names of the models that the backend should serve according to the registry.
    """

    config: BackendConfig
    models: set[str] = field(default_factory=set[str])

    @property
    def is_gateway(self) -> bool:
        return isinstance(self.config, GatewayConfig)

    @property
    def accepts_any_model(self) -> bool:
        return isinstance(self.config, GatewayConfig) and self.config.any_model


class BackendCheck(NamedTuple):
    """Result of the check of all backends.

    Attributes:
        models: names of all known models, sorted. A model is known if it is registered or if a gateway lists
            it. A gateway is a backend for all models in its list.
        all_models_known: False if there may be more models than in `models`: the registered models could not
            be read, or the check of a backend failed and there are gateways.
    """

    findings: list[Finding]
    models: list[str]
    all_models_known: bool


async def check_backends(chosen: Settings, at: Clock) -> BackendCheck:
    """Check all backends by requesting their lists of models.

    Args:
        at: function that returns the current time. The clocks of the backends are compared with this time.
    """
    try:
        catalog = Catalog(chosen)
    except SettingsError as error:
        return BackendCheck([problem(_PART, str(error))], [], all_models_known=False)
    registered, changes = await _registered(chosen, catalog)
    all_known = not changes
    for said in [said for entry in registered for said in entry.problems]:
        message = f"{said[0].upper()}{said[1:]}."
        changes.append(warning(_PART, message, "Register the model again without it."))
    checked = _backends_to_check(catalog, registered)
    if not checked:
        message = "Neither BATCHWRIGHT_BACKENDS nor BATCHWRIGHT_REGISTRY names a backend."
        unset = warning(_PART, message, "Set one of them, or register a model.")
        return BackendCheck([*changes, unset], [], all_known)
    clients = ClientPool(chosen, on_problem=lambda backend, error: None)  # the problem is reported below
    try:
        found, models = await _check_all(chosen, clients, checked, at)
    finally:
        await clients.aclose()
    if any(backend.is_gateway for backend in checked):
        all_known = all_known and all(finding.level is not Level.PROBLEM for finding in found)
    names = sorted(models.union(entry.model for entry in registered))
    return BackendCheck([*changes, *found], names, all_known)


async def _registered(chosen: Settings, catalog: Catalog) -> tuple[list[CatalogEntry], list[Finding]]:
    """Return the registered models and a list of warnings:

    - If the database is available, return all registered models and no warning.
    - If the database is unavailable, return the models in the registry file, and a warning that models
      registered at run time were not checked.
    """
    try:
        database = await open_database(chosen, patience_seconds=0)
        try:
            return await catalog.read(database), []
        finally:
            await database.close()
    except DatabaseError:
        message = (
            "Models changed at run time are unknown without the database: their backends were not checked."
        )
        return catalog.registered([], []), [warning(_PART, message, "Repair the database, then try again.")]


def _backends_to_check(catalog: Catalog, registered: Sequence[CatalogEntry]) -> list[_BackendUnderTest]:
    """Return the backends to check, each only once.

    Gateways (backends for all models) come first, then backends of single models.
    """
    found = {client_key(gateway): _BackendUnderTest(gateway) for gateway in catalog.gateways}
    for entry in registered:
        for config in entry.config.backends:
            backend = found.setdefault(client_key(config), _BackendUnderTest(config))
            backend.models.add(config.model or entry.model)
    return list(found.values())


async def _check_all(
    chosen: Settings, clients: ClientPool, checked: Iterable[_BackendUnderTest], at: Clock
) -> tuple[list[Finding], set[str]]:
    slots = asyncio.Semaphore(_CONCURRENCY)

    async def ask(backend: _BackendUnderTest) -> tuple[list[Finding], set[str]]:
        async with slots:
            return await _check_one(chosen, clients.client_for(backend.config), backend, at)

    answers = await asyncio.gather(*(ask(backend) for backend in checked))
    found = [finding for findings, _ in answers for finding in findings]
    return _merge_clock_findings(found), set[str]().union(*(models for _, models in answers))


def _merge_clock_findings(found: Sequence[Finding]) -> list[Finding]:
    """Replace the findings about backends with a correct clock by one finding. Return all findings.

    The new finding has the number of these backends. Other findings are unchanged. If fewer than two backends
    have a correct clock, nothing is replaced.
    """
    right = [finding for finding in found if finding.part == "clock" and finding.level is Level.OK]
    if len(right) < 2:
        return list(found)
    rest = [finding for finding in found if finding not in right]
    return [*rest, ok("clock", f"{len(right)} backends have clocks that agree with ours.")]


async def _check_one(
    chosen: Settings, client: InferenceClient, backend: _BackendUnderTest, at: Clock
) -> tuple[list[Finding], set[str]]:
    url = backend.config.url
    if client.problem:
        return [problem(_PART, f"{url} cannot be checked: {client.problem}.")], set()
    began, asked = time.monotonic(), at()
    models = set[str]()
    try:
        listing = await client.listing(url)
    except ListingFailed as error:
        found = [_failure_finding(chosen, client, backend, error)]
        backend_time, answered = error.backend_time, at()
    else:
        found = [_listing_finding(client, backend, listing, time.monotonic() - began)]
        backend_time, answered = listing.backend_time, at()
        models.update(listing.models if backend.is_gateway else ())
        found += _slots_findings(backend.config, await client.slots(url))
    if backend_time:
        found.append(compare_clocks(url, backend_time, asked=asked, answered=answered))
    return found, models


def _listing_finding(
    client: InferenceClient, backend: _BackendUnderTest, listing: ModelListing, seconds: float
) -> Finding:
    url, names = backend.config.url, sorted(listing.models)
    answers = f"{url} answers in {1000 * seconds:.0f} ms{', accepts its key' if client.has_key else ''}"
    if not names and backend.accepts_any_model:
        return ok(_PART, f"{answers}, lists no models and accepts any model name.")
    if not names:
        return warning(
            _PART, f"{answers} and lists no models.", "Load a model: no line can be sent to this backend."
        )
    missing = sorted(backend.models.difference(names))
    if missing and not backend.is_gateway:
        return warning(
            _PART,
            f"{answers} and lists {_shortened(names)}, but not {_shortened(missing)}.",
            "Load the missing models, or correct `model` of this backend in the registry.",
        )
    return ok(_PART, f"{answers} and serves {_shortened(names)}.")


def _slots_findings(config: BackendConfig, slots: int | None) -> list[Finding]:
    """Return a warning if Batchwright may send a backend more concurrent requests than the backend has slots.

    Args:
        slots: number of requests that the backend processes at the same time. If the backend has not
            reported this number, None; no warning is returned then.
    """
    if slots is None or (config.in_flight is not None and config.in_flight <= slots):
        return []
    stated = "no `in_flight`" if config.in_flight is None else f"an `in_flight` of {config.in_flight}"
    message = f"{config.url} processes {slots} requests at once and has {stated}, so more of them wait there."
    remedy = f"Set its `in_flight` in the registry to {slots}: then each slot keeps one system prompt."
    return [warning(_PART, message, remedy)]


def _failure_finding(
    chosen: Settings, client: InferenceClient, backend: _BackendUnderTest, error: ListingFailed
) -> Finding:
    url = backend.config.url
    where = _key_location(chosen, backend.config)
    match error.status:
        case 401 if client.has_key:
            return problem(_PART, f"{url} does not accept its key (401).", f"Correct {where}.")
        case 401:
            return problem(_PART, f"{url} requires a key (401), and none is set.", f"Set {where}.")
        case 403:
            message = f"{url} accepts the key, but does not allow listing models (403)."
            return problem(_PART, message, f"Allow it at the backend, or use another key: {where}.")
        case status if status and not error.is_unreachable and backend.accepts_any_model:
            answers = f"{url} answers, lists no models ({_failure_text(error)})"
            return ok(_PART, f"{answers} and accepts any model name.")
        case status if status and not error.is_unreachable and not backend.is_gateway:
            message = f"{url} answers, but does not list its models ({_failure_text(error)})."
            return warning(_PART, message, f"Make sure that it serves {_shortened(sorted(backend.models))}.")
        case _:
            setting = "the registry" if chosen.registry else "BATCHWRIGHT_BACKENDS"
            return problem(_PART, f"{error}.", f"Check its URL in {setting}, and the backend itself.")


def _failure_text(error: ListingFailed) -> str:
    return str(error.status) if error.status != 200 else "its list cannot be read"


def _key_location(chosen: Settings, config: BackendConfig) -> str:
    if chosen.registry is None and isinstance(config, GatewayConfig):
        return "BATCHWRIGHT_BACKEND_API_KEY"
    if config.api_key_env:
        return f"the variable {config.api_key_env}"
    if config.api_key_name:
        return str(chosen.secrets_dir / config.api_key_name)
    return config.api_key_file or "`api_key_name` in the registry"


def _shortened(names: Sequence[str]) -> str:
    shown = ", ".join(names[:8])
    return shown if len(names) <= 8 else f"{shown} and {len(names) - 8} more"
