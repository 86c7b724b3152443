"""What all slices of a process share."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol

from temporalio.client import Client

from activities.ingest.access import not_allowed
from activities.slices.callbacks import Callbacks, NoCallbacks
from activities.slices.deferral import Deferrals
from activities.slices.ownership import Beat, temporal_beat
from activities.slices.pace import NoRates, Rates
from activities.slices.permissions import NoPermissions, Permissions
from activities.slices.progress import ProgressReporter
from activities.slices.waiting import WaitingSignals, temporal_tell
from batchwright.contracts.execution import SliceRequest
from batchwright.database.waiting_base import WaitingTable
from batchwright.inference.adaptive import BackendLimits, Policy
from batchwright.inference.backends import Registry
from batchwright.inference.hooks import Hooks
from batchwright.inference.limits import ByteBudget, Permits
from batchwright.inference.routes import Route
from batchwright.inference.senders import Senders
from batchwright.rules.quotas import Quota
from batchwright.settings import Settings
from batchwright.storage.base import Storage
from batchwright.telemetry.metrics import Metrics
from batchwright.telemetry.traffic import TrafficMeter

_MODELS = 1000


class Backends(Protocol):
    def route_of(self, model: str) -> Route | None: ...


# Of a tenant's batch; raises DatabaseUnavailable.
Cancelled = Callable[[str, str], Awaitable[bool]]


async def _stopped(tenant: str, batch_id: str) -> bool:
    return True


@dataclass
class Tools:
    """Made once; `for_temporal` wires the real ones."""

    storage: Storage
    backends: Backends
    progress: ProgressReporter
    metrics: Metrics
    settings: Settings
    waiting: WaitingSignals
    beat: Callable[[], Beat]  # called inside an activity: the beats of that one
    rates: Rates = field(default_factory=NoRates)
    permissions: Permissions = field(default_factory=NoPermissions)
    callbacks: Callbacks = field(default_factory=NoCallbacks)
    is_cancelled: Cancelled = _stopped  # a batch whose slices are stopped, not paused only
    missing: Callable[[], str] = lambda: ""  # what the worker cannot reach of what slices need, in words
    permits: Permits = field(init=False)
    budget: ByteBudget = field(init=False)
    deferrals: Deferrals = field(init=False)
    senders: Senders = field(init=False)
    alone: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)  # for lines that workers died of
    hooks: Hooks = field(init=False)
    traffic: TrafficMeter = field(init=False)
    _shown: dict[str, Route] = field(default_factory=dict[str, Route])

    def __post_init__(self) -> None:
        settings, metrics = self.settings, self.metrics
        self._in_flight_of = lru_cache(_MODELS)(settings.in_flight_of)  # asked several times a request
        self.permits = self._permits()
        self.budget = ByteBudget(settings.byte_budget)
        metrics.in_flight.set_function(lambda: self.permits.used)
        metrics.in_flight_max.set(settings.global_in_flight)
        metrics.held_bytes.set_function(lambda: self.budget.held)
        metrics.held_bytes_max.set(settings.byte_budget)
        self.deferrals = Deferrals(metrics)
        self.hooks = Hooks(settings)
        self.traffic = TrafficMeter(metrics)
        self.senders = Senders(settings, metrics)

    def _permits(self) -> Permits:
        settings = self.settings
        policy = Policy(
            adaptive=settings.adaptive_limits,
            floor=settings.least_in_flight,
            ceiling=settings.global_in_flight,
            shared=settings.is_shared,
        )
        backends = BackendLimits(policy, self._urls_of, self.metrics)
        return Permits(
            total=settings.global_in_flight,
            per_model=settings.in_flight_of(""),
            backends=backends,
            own=self._own_limit,
        )

    def _own_limit(self, model: str) -> int:
        """As the registry says, or else the settings; of which batches use their share."""
        route = self.backends.route_of(model)
        return self._in_flight_of(model, route.in_flight if route else None)

    def _urls_of(self, model: str) -> Sequence[str]:
        """Of the backends that may get the model's requests."""
        route = self.backends.route_of(model)
        return [] if route is None else route.urls

    def refusal(self, request: SliceRequest, *, has_job: bool) -> str:
        """Why a line of the slice may not be sent now; empty: it may. One that has a job was sent already."""
        permissions, tenant = self.permissions, request.tenant
        if not permissions.may_use(tenant, request.model):
            return not_allowed(request.model)
        if has_job:
            return ""
        key_id = request.caller.key_id
        if permissions.is_withdrawn(key_id):
            return f"The API key {key_id} that created the batch was revoked or has expired."
        refusal = permissions.exhausted(tenant, key_id)
        if refusal:
            self.metrics.quota_refusals.labels(self.metrics.tenants(tenant), Quota.TOKENS_PER_DAY.value).inc()
        return refusal

    def route(self, model: str) -> Route | None:
        """Where its requests go; None where no backend serves it."""
        found = self.backends.route_of(model)
        if found is not None and self._shown.get(model) is not found:
            self._shown[model] = found
            self._show(model, found)
        return found

    def keep(self, models: Collection[str], urls: Collection[str]) -> None:
        """Forgets other models and backends: they are gone."""
        self.permits.keep(models, urls)
        self.traffic.keep(models, urls)
        for model in self._shown.keys() - models:
            del self._shown[model]

    def _show(self, model: str, route: Route) -> None:
        metrics, permits = self.metrics, self.permits
        metrics.model_in_flight.labels(model).set_function(lambda: permits.used_by(model))
        metrics.model_in_flight_max.labels(model).set_function(lambda: permits.limit_of(model))
        metrics.circuit_open.labels(model).set_function(lambda: route.is_open)


def for_temporal(
    *,
    storage: Storage,
    registry: Registry,
    progress: ProgressReporter,
    metrics: Metrics,
    settings: Settings,
    temporal: Client,
    rates: Rates,
    permissions: Permissions,
    callbacks: Callbacks,
    is_cancelled: Cancelled,
    missing: Callable[[], str],
    waiting: WaitingTable,
) -> Tools:
    """The tools of a worker."""
    return Tools(
        storage=storage,
        backends=registry,
        progress=progress,
        metrics=metrics,
        settings=settings,
        waiting=WaitingSignals(temporal_tell(temporal), waiting),
        beat=lambda: temporal_beat(temporal),
        rates=rates,
        permissions=permissions,
        callbacks=callbacks,
        is_cancelled=is_cancelled,
        missing=missing,
    )
