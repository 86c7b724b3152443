"""Registry of models and their backends in one process.

Models have three sources: the registry file (the operator's file of models and backends), the lists that
backends return, and changes that operators make at run time.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from datetime import UTC, datetime

from batchwright.contracts.model_registry.backend_config import BackendConfig
from batchwright.contracts.model_registry.price_config import PriceConfig
from batchwright.contracts.model_registry.registry_config import ModelConfig
from batchwright.contracts.model_registry.stored_models import ModelChange, ServedModel
from batchwright.inference.client_pool import ClientPool, client_key
from batchwright.inference.discovery import ListingFailed
from batchwright.inference.registry.model_catalog import (
    ChangeResolver,
    StoredModelChanges,
    StoredModelLists,
    discovered_models,
    gateways_of,
    unlisted_models,
)
from batchwright.inference.router import ModelRouter
from batchwright.inference.upstream import Backend
from batchwright.rules.backends.registry_changes import effective_models, registry_fingerprint
from batchwright.rules.dispatch.retry_policy import RetryPolicy
from batchwright.rules.ids import is_model_name
from batchwright.settings import Settings, load_registry
from batchwright.telemetry.outage_log import OutageLog

logger = logging.getLogger(__name__)
_REFRESH_SECONDS = 5.0
_REFRESH_CHANGES_SECONDS = 2.0  # workers must apply changes made at run time within 5 s


class BackendRegistry:
    """The models and backends that one process knows. `run` keeps them up to date.

    Gateways are configured backends whose own model lists say which models they serve. If a gateway becomes
    unreachable, its last stored model list stays in use.
    """

    def __init__(
        self,
        settings: Settings,
        models: StoredModelLists,
        changes: StoredModelChanges,
        clients: ClientPool,
        *,
        unavailable: type[Exception],
    ) -> None:
        """Read the registry file (the operator's file of models and backends), whose path is in the settings.

        Raises SettingsError if the file is invalid.

        Args:
            models: the stored model lists of backends.
            changes: the stored changes that operators made at run time.
            clients: creates the clients of the backends.
            unavailable: the exception that `models` and `changes` raise while the database is unreachable.
        """
        self._unavailable = unavailable
        self._settings, self._models, self._changes, self._clients = settings, models, changes, clients
        config = load_registry(settings)
        self._resolver = ChangeResolver(settings)
        self._configured = config.models if config else {}
        self._gateways = gateways_of(settings, config.gateway if config else None)
        self._backends: dict[str, Backend] = {}  # by client key
        self._routers: dict[str, ModelRouter] = {}
        self._configs: dict[str, ModelConfig] = {}
        self._aliases: dict[str, str] = {}
        self._listed: Sequence[ServedModel] = ()
        self._changes_in_effect: Sequence[ModelChange] = ()
        self._removed: set[str] = set()
        self._unlisted: set[str] = set()  # models in use that only backends with `any_model` accept
        self._registered: set[str] = set()  # models in a list of a backend, the file or a change
        self._read = False
        self.fingerprint = ""
        self.problems: dict[str, Sequence[str]] = {}  # by model: parts of its change not applied
        self.on_refresh: list[Callable[[], None]] = []  # called after each refresh
        self.on_probe: list[Callable[[str, float], None]] = []  # called with URL and seconds

    async def served(self) -> frozenset[str]:
        """Return the names and aliases of the models that backends serve.

        If the models have not been read yet, this method first calls `refresh`. If the database is then
        unreachable, the call raises the exception that the constructor got as `unavailable`.
        """
        if not self._read:
            await self.refresh()
        return frozenset(self._routers.keys() | self._aliases.keys())

    async def served_now(self) -> frozenset[str]:
        """Return the names and aliases of the models that backends serve, read again from the database.

        The result includes models that other processes added. If the database is unreachable, the call raises
        the exception that the constructor got as `unavailable`.
        """
        if self._read:
            await self._read_lists()
            await self.refresh_changes()
        return await self.served()

    def canonical(self, name: str) -> str:
        return self._aliases.get(name, name)

    def prices_of(self, model: str) -> PriceConfig | None:
        config = self._configs.get(model)
        if config is None and self.accepts_unlisted(model):
            config = unlisted_models(self._gateways, [model])[model]
        return None if config is None else config.prices

    @property
    def accepts_any_model(self) -> bool:
        return any(gateway.any_model for gateway in self._gateways)

    def accepts_unlisted(self, model: str) -> bool:
        return self.accepts_any_model and model not in self._removed and is_model_name(model)

    def router_for(self, model: str) -> ModelRouter | None:
        found = self._routers.get(model)
        if found is None and self._read and self.accepts_unlisted(model):
            found = self._add_unlisted(model)
        return found

    def _add_unlisted(self, model: str) -> ModelRouter | None:
        """Create and return the router of a model that no backend lists; None if the model cannot be used.

        A router chooses the backend of each request.
        """
        self._unlisted.add(model)
        if model in self._aliases or any(model in config.fallbacks for config in self._configs.values()):
            self._apply(self._changes_in_effect)
            return self._routers.get(model)
        config = unlisted_models(self._gateways, [model])[model]
        self._configs[model] = config
        self._routers[model] = router = self._router(model, config)
        return router

    def retain_unlisted(self, awaited: Collection[str]) -> None:
        """Drop the models that no backend lists, except the models in `awaited`, which batches still need.

        If all such models were kept, tenants could fill the memory with invented model names.
        """
        still_required = self._unlisted.intersection(awaited)
        if still_required != self._unlisted:
            self._unlisted = still_required
            self._apply(self._changes_in_effect)

    @property
    def gateways(self) -> Sequence[BackendConfig]:
        """The configured gateways: backends whose own model lists say which models they serve."""
        return self._gateways

    @property
    def routers(self) -> Sequence[ModelRouter]:
        return list(self._routers.values())

    @property
    def backends(self) -> Sequence[Backend]:
        return list(self._backends.values())

    @property
    def known_models(self) -> frozenset[str]:
        """Names of all models, without aliases. Models that batches use but no backend lists are included.

        The set is empty before the first call of `served` or `refresh`.
        """
        return frozenset(self._routers)

    @property
    def registered_models(self) -> frozenset[str]:
        """Names of the models that the operator or a backend has listed, without aliases.

        The operator lists models in the registry file, and in changes at run time.
        """
        return frozenset(self._routers.keys() & self._registered)

    async def refresh(self) -> None:
        """Update the registry from the backends and from the database, in five steps.

        1. Except in the first call, read and apply the changes that operators made at run time.
        2. Reload API keys and certificates.
        3. Request the model list of each backend. If the backend is a gateway, store its list in the
           database. A gateway is a backend whose own model list says which models it serves.
        4. Read the stored lists of all gateways from the database. If a gateway returned no list in step 3,
           its previous list is read.
        5. Read the operators' changes, in every call. Apply these changes and the lists of step 4.

        If the database is unreachable, the call raises the exception that the constructor got as
        `unavailable`.
        """
        if self._read:
            await self.refresh_changes()
        await self._clients.reload_credentials()
        gateways = [self._backend(gateway) for gateway in self._gateways]
        backends = list(dict.fromkeys([*gateways, *self._backends.values()]))
        listings = await asyncio.gather(*(self._list_models(backend) for backend in backends))
        for backend, names in zip(backends, listings, strict=True):
            if names is not None and backend in gateways:
                await self._record(backend, names)
        await self._read_lists()
        await self.refresh_changes()

    async def _record(self, backend: Backend, names: list[str]) -> None:
        """Store the list of models that a backend has returned in the database.

        If the database is unreachable, raise the exception that the constructor got as `unavailable`. If the
        list cannot be stored for another reason, set `listing_failed` of the backend.
        """
        try:
            await self._models.replace_models(backend.url, names, datetime.now(UTC))
        except self._unavailable:
            raise
        except Exception:  # one backend's names must not end the refresh of the others
            if not backend.listing_failed:
                logger.exception(
                    "the model list of a backend cannot be stored", extra={"backend": backend.url}
                )
            backend.listing_failed = True

    async def refresh_changes(self) -> None:
        """Read and apply the changes that operators made at run time. No request is sent to a backend.

        If the database is unreachable, the call raises the exception that the constructor got as
        `unavailable`.
        """
        self._apply(await self._changes.all())
        for notify in self.on_refresh:  # before any `await`, so that a new backend's limit applies at once
            notify()
        await self._clients.retain_only(self._backends.keys())

    def _valid_changes(
        self, changes: Sequence[ModelChange], known: dict[str, ModelConfig]
    ) -> dict[str, ModelConfig | None]:
        valid: dict[str, ModelConfig | None] = {}
        problems: dict[str, Sequence[str]] = {}
        for row in changes:
            base = known.get(row.model) or unlisted_models(self._gateways, [row.model]).get(row.model)
            valid[row.model], found_problems = self._resolver.resolve(row, base)
            if found_problems:
                problems[row.model] = found_problems
        for model, found_problems in problems.items():
            if self.problems.get(model) != found_problems:
                extra = {"model": model, "problems": "; ".join(found_problems)}
                logger.warning("part of a model's change is not applied", extra=extra)
        self.problems = problems
        return valid

    async def _read_lists(self) -> None:
        self._listed = await self._models.served([gateway.url for gateway in self._gateways])

    async def run(self) -> None:
        """Refresh the models until cancelled.

        While the database is unreachable, keep trying. An outage is logged once, not at every try.
        """
        async with asyncio.TaskGroup() as group:
            group.create_task(self._repeat(self.refresh, _REFRESH_SECONDS))
            group.create_task(self._repeat(self._refresh_changes, _REFRESH_CHANGES_SECONDS))

    async def _repeat(self, work: Callable[[], Awaitable[None]], every: float) -> None:
        outages = OutageLog(logger, "the list of served models cannot be read")
        while True:
            with outages.suppress(self._unavailable):
                await work()
            await asyncio.sleep(every)

    async def _refresh_changes(self) -> None:
        if self._read:
            await self.refresh_changes()

    def _apply(self, changes: Sequence[ModelChange]) -> None:
        self._changes_in_effect = changes
        self._removed = {row.model for row in changes if row.is_removal}
        known = {
            **unlisted_models(self._gateways, self._unlisted),
            **(listed := discovered_models(self._gateways, self._listed)),
            **self._configured,
        }
        changed = (row.model for row in changes if row.config is not None)
        self._registered = {*listed, *self._configured, *changed}
        configs = effective_models(known, self._valid_changes(changes, known))
        before = self._routers
        self._read = True
        if configs != self._configs:
            self._configs = configs
            self._routers = {name: self._router(name, config) for name, config in configs.items()}
            for name in before.keys() - configs.keys():
                before[name].close()  # running turns still use it
            for name, config in configs.items():
                fallbacks = (self._routers.get(other) for other in config.fallbacks)
                self._routers[name].fallbacks = [router for router in fallbacks if router is not None]
            used = {upstream.backend for router in self._routers.values() for upstream in router.upstreams}
            used |= {self._backend(gateway) for gateway in self._gateways}
            self._backends = {key: at for key, at in self._backends.items() if at in used}
            aliases = ((alias, name) for name, config in configs.items() for alias in config.aliases)
            self._aliases = {alias: name for alias, name in aliases if alias not in configs}
        # Model lists are not part of the fingerprint, because processes read them at different times.
        self.fingerprint = registry_fingerprint(self._configured, self._gateways, changes)

    def _router(self, name: str, config: ModelConfig) -> ModelRouter:
        retries = retry_policy_of(self._settings, config)
        router = self._routers.get(name) or ModelRouter(name, retries, self._settings.circuit_failures)
        router.update(config, [self._backend(backend) for backend in config.backends], retries)
        return router

    def _backend(self, config: BackendConfig) -> Backend:
        key = client_key(config)
        found = self._backends.get(key)
        if found is None:
            found = self._backends[key] = Backend(config.url, self._clients.client_for(config))
        return found

    async def _list_models(self, backend: Backend) -> list[str] | None:
        """Request the model list of a backend. Return the names of its models; None if the request fails.

        Also record in `backend` if the backend was reachable, and how long the request took. If the
        previous request failed and this request succeeds, allow one trial request through each open circuit
        breaker of the backend.
        """
        began = time.monotonic()
        try:
            listing = await backend.client.listing(backend.url)
        except ListingFailed as error:
            if not backend.listing_failed:
                logger.warning(
                    "backend did not list its models", extra={"backend": backend.url, "error": str(error)}
                )
            backend.listing_failed, names = True, None
            backend.is_unreachable = error.is_unreachable
        else:
            names = listing.models
            if backend.listing_failed:
                self._allow_trials(backend)
            backend.listing_failed = backend.is_unreachable = False
            if listing.ignored and listing.ignored != backend.ignored_models:
                logger.warning(
                    "some listed models are ignored: their names are not 1 to 256 printable "
                    "characters, or there are more than BATCHWRIGHT_MAX_LISTED_MODELS",
                    extra={"backend": backend.url, "ignored": listing.ignored, "used": len(names)},
                )
            backend.ignored_models = listing.ignored
        backend.has_responded = backend.has_responded or not backend.is_unreachable
        backend.probe_seconds = time.monotonic() - began
        for notify in self.on_probe:
            notify(backend.url, backend.probe_seconds)
        return names

    def _allow_trials(self, backend: Backend) -> None:
        """Allow one trial request through each open circuit breaker of the backend.

        Call this when the backend responds again. A trial shows if the backend has recovered.
        """
        for router in self._routers.values():
            for upstream in router.upstreams:
                if upstream.backend is backend:
                    upstream.circuit.allow_trial()


def retry_policy_of(settings: Settings, config: ModelConfig) -> RetryPolicy:
    """Return the retry policy of a model. Values that `config` does not set come from the settings."""
    own = config.retries
    return RetryPolicy(
        max_attempts=own.max_attempts or settings.max_attempts,
        initial_backoff=own.initial_backoff or settings.initial_backoff_seconds,
        max_backoff=own.max_backoff or settings.max_backoff_seconds,
        give_up_after=settings.give_up_after_seconds if own.give_up_after is None else own.give_up_after,
    )
