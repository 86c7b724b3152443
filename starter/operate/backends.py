"""Checks of the backends: each of the registry in effect, asked as a worker would ask it, a line each."""

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from batchwright.contracts.registry import BackendConfig, GatewayConfig
from batchwright.database.errors import DatabaseError
from batchwright.database.pool import open_database
from batchwright.inference.catalog import Catalog, Registered
from batchwright.inference.client import InferenceClient
from batchwright.inference.clients import Clients, client_key
from batchwright.inference.listing import Listing, ListingFailed
from batchwright.settings import Settings, SettingsError
from starter.operate.findings import Finding, Level, clock, ok, problem, warning
from starter.operate.parts import Clock

_AT_ONCE = 32
_PART = "backends"


@dataclass
class _Asked:
    """One backend, and the models it is to serve, by their names there; a gateway says itself which."""

    config: BackendConfig
    models: set[str] = field(default_factory=set[str])

    @property
    def lists_itself(self) -> bool:
        return isinstance(self.config, GatewayConfig)


async def backends(chosen: Settings, at: Clock) -> tuple[list[Finding], list[str]]:
    """What was found, and the models that are served."""
    try:
        catalog = Catalog(chosen)
    except SettingsError as error:
        return [problem(_PART, str(error))], []
    registered, changes = await _registered(chosen, catalog)
    for said in [said for entry in registered for said in entry.problems]:
        told = f"{said[0].upper()}{said[1:]}."
        changes.append(warning(_PART, told, "Register the model again without it."))
    asked = _asked(catalog, registered)
    if not asked:
        where = "Set BATCHWRIGHT_BACKENDS or BATCHWRIGHT_REGISTRY."
        return [*changes, warning(_PART, "There is none.", where)], []
    clients = Clients(chosen, tells=lambda backend, error: None)  # told below
    try:
        found, models = await _ask_all(chosen, clients, asked, at)
    finally:
        await clients.aclose()
    return [*changes, *found], sorted(models.union(entry.model for entry in registered))


async def _registered(chosen: Settings, catalog: Catalog) -> tuple[list[Registered], list[Finding]]:
    """Without the database: what the file says, and a warning where that may not be all."""
    try:
        database = await open_database(chosen, patience_seconds=0)
        try:
            return await catalog.read(database), []
        finally:
            await database.close()
    except DatabaseError:
        if not catalog.configured:
            return [], []
        told = "What was changed at run time is not known without the database: asked are those of the file."
        return catalog.registered([], []), [warning(_PART, told, "Mend the database, and look again.")]


def _asked(catalog: Catalog, registered: Sequence[Registered]) -> list[_Asked]:
    """Every backend once, gateways first, then by the models."""
    found = {client_key(gateway): _Asked(gateway) for gateway in catalog.gateways}
    for entry in registered:
        for config in entry.config.backends:
            place = found.setdefault(client_key(config), _Asked(config))
            place.models.add(config.model or entry.model)
    return list(found.values())


async def _ask_all(
    chosen: Settings, clients: Clients, asked: Iterable[_Asked], at: Clock
) -> tuple[list[Finding], set[str]]:
    room = asyncio.Semaphore(_AT_ONCE)

    async def ask(place: _Asked) -> tuple[list[Finding], set[str]]:
        async with room:
            return await _ask(chosen, clients.of(place.config), place, at)

    answers = await asyncio.gather(*(ask(place) for place in asked))
    told = [finding for findings, _ in answers for finding in findings]
    return _with_one_clock(told), set[str]().union(*(models for _, models in answers))


def _with_one_clock(told: Sequence[Finding]) -> list[Finding]:
    """Clocks that are right need one line together."""
    right = [finding for finding in told if finding.part == "clock" and finding.level is Level.OK]
    if len(right) < 2:
        return list(told)
    rest = [finding for finding in told if finding not in right]
    return [*rest, ok("clock", f"{len(right)} backends have the same time.")]


async def _ask(
    chosen: Settings, client: InferenceClient, place: _Asked, at: Clock
) -> tuple[list[Finding], set[str]]:
    url = place.config.url
    if client.problem:
        return [problem(_PART, f"{url} cannot be asked: {client.problem}.")], set()
    began = time.monotonic()
    try:
        listing = await client.listing(url)
    except ListingFailed as error:
        found = _refused(chosen, client, place, error)
        told_at = error.told_at
        models = set[str]()
    else:
        found = _listed(client, place, listing, time.monotonic() - began)
        told_at, models = listing.told_at, set(listing.models) if place.lists_itself else set[str]()
    return [found, *([clock(url, told_at, at())] if told_at else [])], models


def _listed(client: InferenceClient, place: _Asked, listing: Listing, seconds: float) -> Finding:
    url, names = place.config.url, sorted(listing.models)
    answers = f"{url} answers in {1000 * seconds:.0f} ms{', takes its key' if client.has_key else ''}"
    if not names:
        return warning(_PART, f"{answers} and lists no models.", "Load one: no line can be sent there.")
    missing = sorted(place.models.difference(names))
    if missing and not place.lists_itself:
        return warning(
            _PART,
            f"{answers} and lists {_some(names)}, but not {_some(missing)}.",
            "Load what is missing, or correct `model` of this backend in the registry.",
        )
    return ok(_PART, f"{answers} and serves {_some(names)}.")


def _refused(chosen: Settings, client: InferenceClient, place: _Asked, error: ListingFailed) -> Finding:
    url = place.config.url
    where = _where_the_key_is(chosen, place.config)
    match error.status:
        case 401 if client.has_key:
            return problem(_PART, f"{url} does not accept its key (401).", f"Correct {where}.")
        case 401:
            return problem(_PART, f"{url} asks for a key (401) and is given none.", f"Give it one: {where}.")
        case 403:
            told = f"{url} knows who asks, but forbids to list models (403)."
            return problem(_PART, told, f"Have it allow that, or give it another key: {where}.")
        case status if status and not error.is_away and not place.lists_itself:
            told = f"{url} answers, but does not tell its models ({_words(error)})."
            return warning(_PART, told, f"Make sure that it serves {_some(sorted(place.models))}.")
        case _:
            setting = "the registry" if chosen.registry else "BATCHWRIGHT_BACKENDS"
            return problem(_PART, f"{error}.", f"Check its URL in {setting}, and the backend itself.")


def _words(error: ListingFailed) -> str:
    return str(error.status) if error.status != 200 else "what it lists cannot be read"


def _where_the_key_is(chosen: Settings, config: BackendConfig) -> str:
    if chosen.registry is None and isinstance(config, GatewayConfig):
        return "BATCHWRIGHT_BACKEND_API_KEY"
    if config.api_key_env:
        return f"the variable {config.api_key_env}"
    if config.api_key_name:
        return str(chosen.secrets_dir / config.api_key_name)
    return config.api_key_file or "`api_key_name` in the registry"


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:8])
    return shown if len(names) <= 8 else f"{shown} and {len(names) - 8} more"
