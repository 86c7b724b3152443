"""Catalog: all models, and where their settings come from. Reading it sends no request to a backend.

Models have three sources: the registry file, in which the operator lists models and backends; the stored
model lists of backends; and changes at run time, which the database stores.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, Protocol

from pydantic import ValidationError

from batchwright.contracts.model_registry.backend_config import BackendConfig
from batchwright.contracts.model_registry.registry_config import GatewayConfig, ModelConfig, ModelSource
from batchwright.contracts.model_registry.stored_models import ModelChange, ServedModel
from batchwright.rules.backends.registry_changes import apply_patch
from batchwright.rules.backends.request_headers import resolve_conflicts
from batchwright.rules.backends.stored_credentials import without_misuse
from batchwright.settings import Settings, load_registry
from batchwright.settings.registry_file import describe_first_error, iter_backends


class StoredModelLists(Protocol):
    """Interface of the storage for the model lists that backends have returned, such as a database table."""

    async def replace_models(self, backend_url: str, names: list[str], at: datetime) -> None: ...
    async def served(self, backend_urls: list[str]) -> Sequence[ServedModel]: ...


class StoredModelChanges(Protocol):
    """Interface of the storage for changes that operators made to models at run time."""

    async def all(self) -> Sequence[ModelChange]: ...


class CatalogTables(Protocol):
    """Interface of the database tables that the catalog reads."""

    @property
    def models(self) -> StoredModelLists: ...
    @property
    def model_changes(self) -> StoredModelChanges: ...


@dataclass(frozen=True)
class CatalogEntry:
    """One model with its settings, and where the settings come from.

    The source is the registry file (the operator's file of models), a backend's list of models, or an
    operator's change at run time.

    Attributes:
        changed_at: time of the change at run time; None if there is no such change.
        seen_at: when a backend last listed the model; None if the source is not a backend's list.
        problems: reasons why parts of the change at run time could not be applied. Each text says what to do.
        base: the model's settings without the change at run time; None if there is no such change, or if the
            change added the model.
        base_source: the source of the settings in `base`; None if `base` is None.
    """

    model: str
    config: ModelConfig
    source: ModelSource
    changed_at: datetime | None = None
    seen_at: datetime | None = None
    problems: Sequence[str] = ()
    change: ModelChange | None = None
    base: ModelConfig | None = None
    base_source: ModelSource | None = None


class Catalog:
    """The list of all registered models, from the settings of this process and from the database.

    The constructor raises SettingsError if the registry file (the operator's file of models) is invalid.
    """

    def __init__(self, settings: Settings) -> None:
        self._changes = ChangeResolver(settings)
        self.file = load_registry(settings)
        self.configured = self.file.models if self.file else {}
        self.gateways = gateways_of(settings, self.file.gateway if self.file else None)

    async def read(self, tables: CatalogTables) -> list[CatalogEntry]:
        """Return all models, sorted by name. Exceptions of the tables are raised unchanged."""
        return self.registered(await tables.model_changes.all(), await self.seen(tables))

    async def seen(self, tables: CatalogTables) -> Sequence[ServedModel]:
        return await tables.models.served([gateway.url for gateway in self.gateways])

    @property
    def trusted(self) -> Sequence[BackendConfig]:
        """Backends in the settings and in the registry file (the operator's file of models).

        A stored API key may be sent only to the hosts of these backends. Otherwise a change at run time could
        send the key to another host.
        """
        return self._changes.trusted

    def base_of(self, model: str, seen: Sequence[ServedModel]) -> ModelConfig | None:
        """Return the settings of a model without the change that an operator made to it at run time.

        Return None if only this change defines the model.

        Args:
            seen: the stored model lists of backends.
        """
        known = self.configured.get(model) or discovered_models(self.gateways, seen).get(model)
        return known or unlisted_models(self.gateways, [model]).get(model)

    def registered(self, changes: Sequence[ModelChange], seen: Sequence[ServedModel]) -> list[CatalogEntry]:
        """Return all models with their settings, sorted by name.

        If a model has several sources, an operator's change at run time overrides the registry file (the
        operator's file of models). The registry file overrides the model lists of backends.

        Args:
            changes: the stored changes that operators made at run time.
            seen: the stored model lists of backends.
        """
        last: dict[str, datetime] = {}
        for row in seen:
            last[row.name] = max(row.seen_at, last.get(row.name, row.seen_at))
        found = {
            name: CatalogEntry(name, config, "listing", seen_at=last[name])
            for name, config in discovered_models(self.gateways, seen).items()
        }
        found |= {name: CatalogEntry(name, config, "file") for name, config in self.configured.items()}
        for row in changes:
            base = found.pop(row.model, None)
            unnamed = unlisted_models(self.gateways, [row.model]).get(row.model)
            base = base or (CatalogEntry(row.model, unnamed, "listing") if unnamed else None)
            config, problems = self._changes.resolve(row, base.config if base else None)
            if config is not None:
                found[row.model] = CatalogEntry(
                    row.model,
                    config,
                    "change",
                    changed_at=row.changed_at,
                    problems=problems,
                    change=row,
                    base=base.config if base else None,
                    base_source=base.source if base else None,
                )
        return [entry for _, entry in sorted(found.items())]


class ResolvedModel(NamedTuple):
    """A configured model after an operator's change at run time was applied.

    Attributes:
        config: settings that apply now; None if the change removes the model.
        problems: reasons why parts of the change could not be applied.
    """

    config: ModelConfig | None
    problems: Sequence[str] = ()


class ChangeResolver:
    """An object that applies the changes that operators made to models at run time.

    If the registry file (the operator's file of models) or the settings forbid a part of a change, this part
    is not applied.
    """

    def __init__(self, settings: Settings) -> None:
        file = load_registry(settings)
        self._dispatch_header = settings.dispatch_header
        self.trusted: list[BackendConfig] = [backend for _, backend in iter_backends(file)] if file else []
        self.trusted += gateways_of(settings, file.gateway if file else None)

    def resolve(self, change: ModelChange, base: ModelConfig | None) -> ResolvedModel:
        """Return the model after the change.

        A patch changes only some settings. If a patch no longer fits the model, it is not applied, and the
        result names the problem.

        Args:
            base: the model without the change; None if only the change defines the model.
        """
        config, problems = change.config, list[str]()
        if change.patch is not None:
            config = base
            if base is not None:
                try:
                    config = apply_patch(base, change.patch)
                except ValidationError as error:
                    problem = f"the change of {change.model!r} no longer fits the file or the listing"
                    problems.append(f"{problem} ({describe_first_error(error)}): change or revert it")
        if config is None:
            return ResolvedModel(None)
        config, misuses = without_misuse(config, self.trusted)
        config, conflicts = resolve_conflicts(change.model, config, self._dispatch_header)
        return ResolvedModel(config, [*problems, *misuses, *conflicts])


def discovered_models(
    gateways: Sequence[GatewayConfig], listed: Sequence[ServedModel]
) -> dict[str, ModelConfig]:
    """Return the settings of every model that a gateway lists, by name of the model.

    A gateway is a backend whose own model list says which models it serves. The backends of a model are all
    gateways that list the model.

    Args:
        listed: the stored model lists of the gateways.
    """
    if not gateways:
        return {}
    order: Mapping[str, GatewayConfig] = {gateway.url: gateway for gateway in gateways}
    listing = {(row.name, row.backend_url) for row in listed}
    return {
        name: _at_gateways([gateway for url, gateway in order.items() if (name, url) in listing])
        for name in sorted({row.name for row in listed})
    }


def unlisted_models(gateways: Sequence[GatewayConfig], names: Collection[str]) -> dict[str, ModelConfig]:
    """Return settings for the models `names`, which no backend lists.

    A gateway is a backend whose own model list says which models it serves. The backends of each model are
    all `gateways` that accept any model name. If no gateway does, the result is empty.
    """
    accepting = [gateway for gateway in gateways if gateway.any_model]
    return {name: _at_gateways(accepting) for name in sorted(names)} if accepting else {}


def _at_gateways(gateways: list[GatewayConfig]) -> ModelConfig:
    first = gateways[0]
    return ModelConfig.model_construct(
        backends=gateways, retries=first.retries, limits=first.limits, prices=first.prices
    )


def gateways_of(settings: Settings, gateway: GatewayConfig | None) -> list[GatewayConfig]:
    """Return the configured gateways, which are backends whose own model lists say which models they serve.

    Args:
        gateway: the gateway in the registry file (the operator's file of models). If the file has none, the
            result is the gateways in the settings.
    """
    if gateway is not None:
        return [gateway]
    urls = dict.fromkeys(url.removesuffix("/v1") for url in settings.backends)
    return [GatewayConfig.model_construct(url=url, any_model=settings.any_model) for url in urls]
