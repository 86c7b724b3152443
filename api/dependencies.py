"""Objects that the routes depend on: settings, database, storage, Temporal. `api/lifespan.py` opens them."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Protocol

from batchwright.api.client_limits.held_bytes import HeldBytes
from batchwright.api.client_limits.long_responses import ApiShutdown
from batchwright.api.client_limits.retry_after import RetryAfterSpread
from batchwright.api.running_batches import RunningBatches
from batchwright.api.temporal_gateway import TemporalGateway
from batchwright.background import BackgroundTasks
from batchwright.contracts.model_registry.price_config import PriceConfig
from batchwright.database.database import Database
from batchwright.inference.router import ModelRouter
from batchwright.oidc.issuer_keys import IssuerKeys
from batchwright.settings import Settings
from batchwright.storage.base import Storage
from batchwright.storage.referenced_input import InputObjects
from batchwright.telemetry.exposition import SdkMetricsClient
from batchwright.telemetry.metrics import Metrics
from batchwright.webhooks.submitted_url_check import UrlChecker


class ListedModels(Protocol):
    async def served(self) -> frozenset[str]:
        """Return the names of the models that at least one backend serves."""
        ...

    async def served_now(self) -> frozenset[str]:
        """Read the model registry (the list of models and their backends) from the database again. Return the
        names of the models that a backend serves.

        This also updates the prices and aliases that the other methods return.
        """
        ...

    def canonical(self, name: str) -> str:
        """Return the name of the model that has the alias `name`. If `name` is not an alias, return `name`
        itself.
        """
        ...

    def prices_of(self, model: str) -> PriceConfig | None:
        """Return the prices of a model; None if the model has no prices."""
        ...

    def accepts_unlisted(self, model: str) -> bool:
        """Return True if requests for this model may be sent even if no backend lists the model."""
        ...


class ModelRouters(Protocol):
    def router_for(self, model: str) -> ModelRouter | None:
        """Return the router that sends requests for a model to its backends; None if there is no such model.

        `model` must not be an alias.
        """
        ...

    def retain_unlisted(self, awaited: Collection[str]) -> None:
        """Drop the routers of models that no backend lists and no request uses, to free memory.

        A router chooses the backend of each request.

        Args:
            awaited: names of the models that requests still use.
        """
        ...


def now() -> datetime:
    """Return the current time without fractions of a second. Times in the API have this precision."""
    return datetime.now(UTC).replace(microsecond=0)


@dataclass(frozen=True)
class ApiDependencies:
    settings: Settings
    database: Database
    storage: Storage
    temporal: TemporalGateway
    models: ListedModels
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
    def held_bytes(self) -> HeldBytes:
        """The object that limits how many bytes this process keeps in memory for clients and backends.

        All routes share it, so that its limits apply to the bytes of all routes together.
        """
        return HeldBytes(max(self.settings.max_line_bytes, self.settings.max_response_bytes))

    @cached_property
    def running_batches(self) -> RunningBatches:
        """The object that finds running batches without a database row. It limits how many ids of
        unknown batches a tenant may send.

        All routes share it, so that the limit applies to all requests of a tenant together.
        """
        return RunningBatches(self.temporal, self.settings, self.clock)

    @cached_property
    def webhook_urls(self) -> UrlChecker:
        """The object that checks webhook URLs, and limits how many forbidden URLs a tenant may send.

        All routes share it, so that the limit applies to all requests of a tenant together.
        """
        return UrlChecker(self.settings.webhook_networks)

    @cached_property
    def input_objects(self) -> InputObjects:
        """The reader of objects in S3 that clients name as inputs. It is closed when the process stops."""
        return InputObjects(self.settings)
