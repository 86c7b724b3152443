"""Dependencies of the routes: settings, database, storage, Temporal. `api/lifespan.py` opens them."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Protocol

from batchwright.api.retry_after import RetryAfterSpread
from batchwright.api.streams import ApiShutdown
from batchwright.api.temporal_gateway import TemporalGateway
from batchwright.background import BackgroundTasks
from batchwright.contracts.registry.prices import PriceConfig
from batchwright.database.database import Database
from batchwright.inference.router import ModelRouter
from batchwright.oidc.issuer_keys import IssuerKeys
from batchwright.settings import Settings
from batchwright.storage.base import Storage
from batchwright.telemetry.exposition import SdkMetricsClient
from batchwright.telemetry.metrics import Metrics
from batchwright.webhooks.url_checker import UrlChecker


class ServedModels(Protocol):
    async def served(self) -> frozenset[str]:
        """Return the names of the models that at least one backend serves."""
        ...

    async def served_now(self) -> frozenset[str]:
        """Read the registry from the database again, and return the names of the served models.

        After this call, prices and aliases are current, too.
        """
        ...

    def canonical(self, name: str) -> str:
        """Return the name of the model that has the alias `name`; `name` itself if it is not an alias."""
        ...

    def prices_of(self, model: str) -> PriceConfig | None:
        """Return the prices of a model; None if the model has no prices."""
        ...

    def accepts_unlisted(self, model: str) -> bool:
        """Return True if requests for this model may be sent although no backend lists the model."""
        ...


class ModelRouters(Protocol):
    def router_for(self, model: str) -> ModelRouter | None:
        """Return the router of a model, which has no alias as its name; None if there is no such model."""
        ...

    def retain_unlisted(self, awaited: Collection[str]) -> None:
        """Drop the models that no backend lists, except those in `awaited`."""
        ...


def now() -> datetime:
    """Return the current time in whole seconds, which is the precision of times in the API."""
    return datetime.now(UTC).replace(microsecond=0)


@dataclass(frozen=True)
class ApiDependencies:
    settings: Settings
    database: Database
    storage: Storage
    temporal: TemporalGateway
    models: ServedModels
    metrics: Metrics
    sdk_metrics: SdkMetricsClient = field(default_factory=SdkMetricsClient)
    background: BackgroundTasks = field(default_factory=BackgroundTasks)
    clock: Callable[[], datetime] = now
    retry_spread: RetryAfterSpread = field(default_factory=RetryAfterSpread)
    recent_seconds: float = 1.0  # maximum age of cached limits, queues and lists of results
    stopping: ApiShutdown = field(default_factory=ApiShutdown)
    issuer_keys: IssuerKeys | None = None  # None if no tokens are accepted
    routers: ModelRouters | None = None  # None if no interactive calls are accepted

    @cached_property
    def webhook_urls(self) -> UrlChecker:
        """The checker of webhook URLs, which all routes share, so that they count refused URLs together."""
        return UrlChecker(self.settings.webhook_networks)
