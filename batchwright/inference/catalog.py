"""All models as they are registered, for those who show or change them; no backend is asked."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Protocol

from batchwright.contracts.registry import GatewayConfig, ModelConfig
from batchwright.rules.added_headers import cleaned
from batchwright.settings import Settings, registry_of

Source = Literal["file", "change", "listing"]


class ListedModel(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def backend_url(self) -> str: ...


class Seen(ListedModel, Protocol):
    @property
    def seen_at(self) -> datetime: ...


class ModelChange(Protocol):
    @property
    def model(self) -> str: ...
    @property
    def config(self) -> ModelConfig | None: ...
    @property
    def changed_at(self) -> datetime: ...


class SeenTable(Protocol):
    async def served(self, backend_urls: list[str]) -> Sequence[Seen]: ...


class ChangesTable(Protocol):
    async def all(self) -> Sequence[ModelChange]: ...


class Tables(Protocol):
    """The database, as far as it is asked here."""

    @property
    def models(self) -> SeenTable: ...
    @property
    def model_changes(self) -> ChangesTable: ...


@dataclass(frozen=True)
class Registered:
    """A model, and where it comes from: `changed_at` of a change, `seen_at` of a listing.

    `problems` are what of the change is not heeded, and what to do about it.
    """

    model: str
    config: ModelConfig
    source: Source
    changed_at: datetime | None = None
    seen_at: datetime | None = None
    problems: Sequence[str] = ()


class Catalog:
    """Raises SettingsError if the registry's file is not what it should be."""

    def __init__(self, settings: Settings) -> None:
        self._dispatch_header = settings.dispatch_header
        self.file = registry_of(settings)
        self.configured = self.file.models if self.file else {}
        self.gateways = gateways_of(settings, self.file.gateway if self.file else None)

    async def read(self, tables: Tables) -> list[Registered]:
        """By name. Raises what the tables do while they cannot answer."""
        return self.registered(await tables.model_changes.all(), await self.seen(tables))

    async def seen(self, tables: Tables) -> Sequence[Seen]:
        return await tables.models.served([gateway.url for gateway in self.gateways])

    def registered(self, changes: Sequence[ModelChange], seen: Sequence[Seen]) -> list[Registered]:
        """By name. A change wins over the file, and both over what gateways list."""
        changed = {row.model for row in changes}
        last: dict[str, datetime] = {}
        for row in seen:
            last[row.name] = max(row.seen_at, last.get(row.name, row.seen_at))
        found = {
            name: Registered(name, config, "listing", seen_at=last[name])
            for name, config in discovered(self.gateways, seen, changed).items()
        }
        for name, config in self.configured.items():
            if name not in changed:
                found[name] = Registered(name, config, "file")
        for row in changes:
            if row.config is not None:
                config, problems = cleaned(row.model, row.config, self._dispatch_header)
                found[row.model] = Registered(
                    row.model, config, "change", changed_at=row.changed_at, problems=problems
                )
        return [entry for _, entry in sorted(found.items())]


def discovered(
    gateways: Sequence[GatewayConfig], listed: Sequence[ListedModel], without: Collection[str]
) -> dict[str, ModelConfig]:
    """Every model that gateways list, at all that list it, in their order."""
    order: Mapping[str, GatewayConfig] = {gateway.url: gateway for gateway in gateways}
    listing = {(row.name, row.backend_url) for row in listed}
    return {
        name: ModelConfig.model_construct(
            backends=[gateway for url, gateway in order.items() if (name, url) in listing],
            retries=gateways[0].retries,
            limits=gateways[0].limits,
        )
        for name in sorted({row.name for row in listed}.difference(without))
    }


def gateways_of(settings: Settings, gateway: GatewayConfig | None) -> list[GatewayConfig]:
    """Those that tell themselves which models they serve."""
    if gateway is not None:
        return [gateway]
    urls = dict.fromkeys(url.removesuffix("/v1") for url in settings.backends)
    return [GatewayConfig.model_construct(url=url) for url in urls]
