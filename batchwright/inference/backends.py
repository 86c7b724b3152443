"""Which backends serve which model: configured, listed by backends, changed at run time."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Protocol

from batchwright.contracts.registry import BackendConfig, ModelConfig
from batchwright.inference.catalog import ListedModel, discovered, gateways_of
from batchwright.inference.clients import Clients, client_key
from batchwright.inference.listing import ListingFailed
from batchwright.inference.routes import Backend, Route
from batchwright.rules.added_headers import cleaned
from batchwright.rules.registry import effective, fingerprint
from batchwright.rules.retries import Retries
from batchwright.settings import Settings, registry_of

logger = logging.getLogger(__name__)
_LOOK_SECONDS = 2.0  # at changes made at run time: workers are to follow within 5 s


class ModelsTable(Protocol):
    """Where the lists are kept; the database's table of served models is one."""

    async def note(self, backend_url: str, names: list[str], at: datetime) -> None: ...
    async def served(self, backend_urls: list[str]) -> Sequence[ListedModel]: ...


class ModelChange(Protocol):
    @property
    def model(self) -> str: ...
    @property
    def config(self) -> ModelConfig | None: ...


class ChangesTable(Protocol):
    """Models registered, changed or (None) taken away at run time."""

    async def all(self) -> Sequence[ModelChange]: ...


class CurrentModels(Protocol):
    async def served_now(self) -> frozenset[str]:
        """The models some backend serves, aliases included, as far as any process knew before the call."""
        ...

    def canonical(self, name: str) -> str:
        """The model that an alias stands for; other names are their own."""
        ...


class Registry:
    """A backend that does not answer keeps the models it listed last: an outage takes no model away (R8)."""

    def __init__(
        self,
        settings: Settings,
        models: ModelsTable,
        changes: ChangesTable,
        clients: Clients,
        *,
        unavailable: type[Exception],
    ) -> None:
        """`unavailable` is what the tables raise while they cannot answer. Raises SettingsError."""
        self._unavailable = unavailable
        self._settings, self._models, self._changes, self._clients = settings, models, changes, clients
        config = registry_of(settings)
        self._configured = config.models if config else {}
        self._gateways = gateways_of(settings, config.gateway if config else None)
        self._backends: dict[str, Backend] = {}  # by what tells clients apart
        self._routes: dict[str, Route] = {}
        self._configs: dict[str, ModelConfig] = {}
        self._aliases: dict[str, str] = {}
        self._listed: Sequence[ListedModel] = ()
        self._changed = asyncio.Event()
        self._read = False
        self.fingerprint = ""
        self.problems: dict[str, list[str]] = {}  # by model: what of its registration is not heeded
        self.on_look: list[Callable[[], None]] = []  # it was read, or backends were asked
        self.on_probe: list[Callable[[str, float], None]] = []  # a backend was asked: URL, seconds

    async def served(self) -> frozenset[str]:
        """Read afresh at the first call. Raises `unavailable` only if nothing was ever read."""
        if not self._read:
            await self.refresh()
        return frozenset(self._routes.keys() | self._aliases.keys())

    async def served_now(self) -> frozenset[str]:
        """A model that the API lists is served, though this process was not to look again for a while yet.

        No backend is asked but at the first call. Raises `unavailable`.
        """
        if self._read:
            await self._read_lists()
            await self.look()
        return await self.served()

    def canonical(self, name: str) -> str:
        return self._aliases.get(name, name)

    def route_of(self, model: str) -> Route | None:
        return self._routes.get(model)

    @property
    def routes(self) -> Sequence[Route]:
        return list(self._routes.values())

    @property
    def backends(self) -> Sequence[Backend]:
        return list(self._backends.values())

    @property
    def known(self) -> frozenset[str]:
        """The models as far as they were read, without aliases; `served` reads them first."""
        return frozenset(self._routes)

    async def changed(self) -> frozenset[str]:
        """The models, once they are others than at the last call."""
        await self._changed.wait()
        self._changed.clear()
        return frozenset(self._routes)

    async def refresh(self) -> None:
        """Follows changes, asks every backend, then reads what is listed. Raises `unavailable`."""
        if self._read:
            await self.look()
        await self._clients.renew()
        gateways = [self._backend(gateway) for gateway in self._gateways]
        asked = list(dict.fromkeys([*gateways, *self._backends.values()]))
        listings = await asyncio.gather(*(self._ask(backend) for backend in asked))
        for backend, names in zip(asked, listings, strict=True):
            if names is not None and backend in gateways:
                await self._models.note(backend.url, names, datetime.now(UTC))
        await self._read_lists()
        await self.look()

    async def look(self) -> None:
        """Follows what was changed at run time; no backend is asked. Raises `unavailable`."""
        changes = self._heeded(await self._changes.all())
        self._take(effective(self._configured, changes), {name for name in changes if changes[name] is None})
        await self._clients.keep(self._backends.keys())
        for told in self.on_look:
            told()

    def _heeded(self, changes: Sequence[ModelChange]) -> dict[str, ModelConfig | None]:
        heeded: dict[str, ModelConfig | None] = {}
        problems: dict[str, list[str]] = {}
        for row in changes:
            heeded[row.model] = row.config
            if row.config is not None:
                heeded[row.model], said = cleaned(row.model, row.config, self._settings.dispatch_header)
                if said:
                    problems[row.model] = said
        for model, said in problems.items():
            if self.problems.get(model) != said:
                extra = {"model": model, "problems": "; ".join(said)}
                logger.warning("not all of a registered model is heeded", extra=extra)
        self.problems = problems
        return heeded

    async def _read_lists(self) -> None:
        self._listed = await self._models.served([gateway.url for gateway in self._gateways])

    async def run(self) -> None:
        """Refreshes for ever; a database that is away is logged once and asked again."""
        every = self._settings.model_refresh_seconds
        async with asyncio.TaskGroup() as group:
            group.create_task(self._repeat(self.refresh, every))
            group.create_task(self._repeat(self._look_again, min(_LOOK_SECONDS, every)))

    async def _repeat(self, work: Callable[[], Awaitable[None]], every: float) -> None:
        failing = False
        while True:
            try:
                await work()
                failing = False
            except self._unavailable as error:
                if not failing:
                    logger.warning("the list of served models cannot be read", extra={"error": str(error)})
                failing = True
            await asyncio.sleep(every)

    async def _look_again(self) -> None:
        if self._read:
            await self.look()

    def _take(self, configured: dict[str, ModelConfig], taken_away: set[str]) -> None:
        configs = {**discovered(self._gateways, self._listed, taken_away), **configured}
        before = self._routes
        self._read = True
        if configs != self._configs:
            self._configs = configs
            self._routes = {name: self._route(name, config) for name, config in configs.items()}
            for name in before.keys() - configs.keys():
                before[name].close()  # turns that run have it at hand
            for name, config in configs.items():
                known = (self._routes.get(other) for other in config.fallbacks)
                self._routes[name].fallbacks = [route for route in known if route is not None]
            used = {lane.backend for route in self._routes.values() for lane in route.lanes}
            used |= {self._backend(gateway) for gateway in self._gateways}
            self._backends = {key: at for key, at in self._backends.items() if at in used}
            self._aliases = {alias: name for name, config in configs.items() for alias in config.aliases}
            self._aliases = {alias: name for alias, name in self._aliases.items() if alias not in configs}
        # What backends list is no configuration: it may be learnt a moment later here than elsewhere.
        self.fingerprint = fingerprint(configured, self._gateways)
        if self._routes.keys() != before.keys():
            self._changed.set()

    def _route(self, name: str, config: ModelConfig) -> Route:
        retries = retries_of(self._settings, config)
        route = self._routes.get(name) or Route(name, retries, self._settings.circuit_failures)
        route.follow(config, [self._backend(backend) for backend in config.backends], retries)
        return route

    def _backend(self, config: BackendConfig) -> Backend:
        key = client_key(config)
        found = self._backends.get(key)
        if found is None:
            found = self._backends[key] = Backend(config.url, self._clients.of(config))
        return found

    async def _ask(self, backend: Backend) -> list[str] | None:
        """The models it lists; None where it does not tell."""
        began = time.monotonic()
        try:
            names = await backend.client.models(backend.url)
        except ListingFailed as error:
            if not backend.is_silent:
                logger.warning(
                    "a backend lists no models", extra={"backend": backend.url, "error": str(error)}
                )
            backend.is_silent, names = True, None
            backend.is_away = error.is_away
        else:
            if backend.is_silent:
                self._returned(backend)
            backend.is_silent = backend.is_away = False
        backend.was_heard = backend.was_heard or not backend.is_away
        backend.probe_seconds = time.monotonic() - began
        for told in self.on_probe:
            told(backend.url, backend.probe_seconds)
        return names

    def _returned(self, backend: Backend) -> None:
        """It answers again: open circuits need not wait."""
        for route in self._routes.values():
            for lane in route.lanes:
                if lane.backend is backend:
                    lane.circuit.try_now()


def retries_of(settings: Settings, config: ModelConfig) -> Retries:
    """The model's own, and the settings where it has none."""
    own = config.retries
    return Retries(
        max_attempts=own.max_attempts or settings.max_attempts,
        initial_backoff=own.initial_backoff or settings.initial_backoff_seconds,
        max_backoff=own.max_backoff or settings.max_backoff_seconds,
        give_up_after=settings.give_up_after_seconds if own.give_up_after is None else own.give_up_after,
    )
