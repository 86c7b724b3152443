"""State that all slices of a worker process share."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial

from batchwright.activities.execution.slice_state.lease import Heartbeat
from batchwright.activities.execution.slice_state.line_quarantine import QuarantineOrder
from batchwright.activities.services.backend_job_callbacks import CallbackWatch
from batchwright.activities.services.backend_job_cancellation import RouterLookup
from batchwright.activities.services.batch_cost_cap import BatchCosts
from batchwright.activities.services.progress_writer import ProgressReporter
from batchwright.activities.services.send_authorization import Permissions
from batchwright.activities.services.waiting_reason_publisher import WaitingReasonPublisher
from batchwright.activities.services.worker_slices.slice_deferrals import DeferralMetrics
from batchwright.activities.services.worker_slices.slice_demand import SliceDemand
from batchwright.database.tables.calls import CallsTable
from batchwright.inference.hooks import PreCallHooks
from batchwright.inference.limits.adaptive_backend_limits import AdaptiveLimitPolicy, BackendLimits
from batchwright.inference.limits.concurrency_limiter import ConcurrencyLimiter
from batchwright.inference.limits.fleet_rate_limits import EffectiveRates
from batchwright.inference.limits.memory_budget import MemoryBudget
from batchwright.inference.limits.tenant_and_model_limits import (
    Limit,
    Rates,
    TenantAndModelLimits,
    TenantSettings,
)
from batchwright.inference.router import ModelRouter
from batchwright.inference.sender_choice import MicrobatchSenders
from batchwright.settings import Settings
from batchwright.storage.base import Storage
from batchwright.telemetry.backend_traffic import BackendTraffic
from batchwright.telemetry.metrics import Metrics

_MAX_MODELS = 1000


# Called with a tenant and the id of its batch. Raises DatabaseUnavailable.
IsCancelled = Callable[[str, str], Awaitable[bool]]


@dataclass
class WorkerContext:
    """The services and limits that all slices in a worker process share."""

    storage: Storage
    routers: RouterLookup
    progress: ProgressReporter
    metrics: Metrics
    settings: Settings
    waiting_reasons: WaitingReasonPublisher
    costs: BatchCosts
    heartbeat: Callable[[], Heartbeat]  # called inside an activity: returns that activity's heartbeat
    rates: EffectiveRates
    tenant_settings: TenantSettings
    permissions: Permissions
    callbacks: CallbackWatch
    calls: CallsTable
    is_cancelled: IsCancelled  # returns whether a batch is cancelled, not only paused
    # Returns the names of the dependencies that the worker cannot reach; empty if it reaches all.
    missing_dependencies: Callable[[], str]
    # Held to send a quarantined line, and by other work of the process that may crash it.
    quarantine_lock: asyncio.Lock
    quarantine_order: QuarantineOrder = field(default_factory=QuarantineOrder)
    # Returns how many live workers serve the given task queue; 0 if unknown.
    count_workers: Callable[[str], int] = lambda _: 0
    # Returns True if interactive calls take this worker's part of a backend's limit. The argument is its URL.
    is_used_up_by_interactive: Callable[[str], bool] = lambda _: False
    permits: ConcurrencyLimiter = field(init=False)
    budget: MemoryBudget = field(init=False)
    demand: SliceDemand = field(init=False)
    deferrals: DeferralMetrics = field(init=False)
    senders: MicrobatchSenders = field(init=False)
    hooks: PreCallHooks = field(init=False)
    traffic: BackendTraffic = field(init=False)
    _shown: dict[str, ModelRouter] = field(default_factory=dict[str, ModelRouter])

    def __post_init__(self) -> None:
        settings, metrics = self.settings, self.metrics
        self._in_flight_of = lru_cache(_MAX_MODELS)(settings.in_flight_of)  # called often per request
        self.budget = MemoryBudget(settings.byte_budget)
        policy = AdaptiveLimitPolicy(
            adaptive=settings.adaptive_limits,
            ceiling=settings.global_in_flight,
            interactive=settings.is_shared,
        )
        self.permits = ConcurrencyLimiter(
            total=settings.global_in_flight,
            model_limit=self._model_limit,
            backends=BackendLimits(policy, self.urls_of, metrics),
            has_room=self.budget.has_room,
            limits=TenantAndModelLimits(self.tenant_settings, self._record_wait),
        )
        self.demand = SliceDemand(self.permits, self.budget, self._is_blocked, self.has_share)
        metrics.in_flight.set_function(lambda: self.permits.used)
        metrics.in_flight_max.set(settings.global_in_flight)
        metrics.held_bytes.set_function(lambda: self.budget.held)
        metrics.held_bytes_max.set(settings.byte_budget)
        self.deferrals = DeferralMetrics(metrics)
        self.hooks = PreCallHooks(settings, metrics)
        self.traffic = BackendTraffic(metrics)
        self.senders = MicrobatchSenders(settings, metrics)

    def _record_wait(self, limit: Limit, model: str, tenant: str, seconds: float) -> None:
        metrics = self.metrics
        metrics.limited_seconds.labels(model, limit).inc(seconds)
        if tenant:
            metrics.tenant_limited_seconds.labels(metrics.tenants(tenant), limit).inc(seconds)

    def set_fleet_shares(self, in_flight: Mapping[str, int], rates: Mapping[str, Rates]) -> None:
        """Set this process's part of each fleet-wide limit.

        A fleet-wide limit is divided between all workers.

        Args:
            in_flight: maximum number of requests in flight, by backend URL.
            rates: maximum number of requests and of tokens per minute, by model.
        """
        self.permits.backends.set_shares(in_flight)
        self.permits.limits.model_rates = rates

    def _model_limit(self, model: str) -> int:
        """Return how many requests of this process to the model may be in flight.

        A limit in the registry of models overrides the limit in the settings.
        """
        router = self.routers.router_for(model)
        if router is None:
            return self._in_flight_of(model)
        return self._in_flight_of(model, router.limits.in_flight, router.limits.capacity_fraction)

    def _is_blocked(self, model: str) -> bool:
        router = self.routers.router_for(model)
        return router is None or router.only_trials_allowed

    def has_share(self, model: str) -> bool:
        """Return True if this worker may send requests to at least one backend of the model.

        A fleet-wide limit is divided between all workers. If this worker's part for a backend is 0, it may
        not send to that backend. If the model has no backend, the result is also True, because no limit stops
        this worker.
        """
        urls = self.urls_of(model)
        return not urls or any(self.permits.backends.has_share(url) for url in urls)

    def urls_of(self, model: str) -> Sequence[str]:
        """Return the URLs of the backends that may get the model's requests."""
        router = self.routers.router_for(model)
        return [] if router is None else router.urls

    def router(self, model: str) -> ModelRouter | None:
        """Return the router that selects backends for the model; None if no backend serves the model.

        The first call for a router also adds the model's metrics to /metrics, and lets the router know how
        many requests to the model this process may have in flight.
        """
        found = self.routers.router_for(model)
        if found is not None and self._shown.get(model) is not found:
            self._shown[model] = found
            found.prefixes.max_in_flight = partial(self.permits.limit_of, model)
            self._show(model, found)
        return found

    def retain(self, models: Collection[str], urls: Collection[str]) -> None:
        """Drop the state of all models not in `models` and of all backends not in `urls`.

        Call this with the remaining models and backend URLs, after some were removed from the registry.
        """
        self.permits.retain_only(models, urls)
        self.demand.retain_only(models)
        routers = [router for model in models if (router := self.routers.router_for(model))]
        interactive = [router for router in routers if (router.limits.capacity_fraction or 1) < 1]
        self.permits.backends.set_interactive(
            {upstream.backend.url for router in interactive for upstream in router.upstreams}
        )
        self.traffic.retain(models, urls)
        for model in self._shown.keys() - models:
            del self._shown[model]

    def _show(self, model: str, router: ModelRouter) -> None:
        metrics, permits = self.metrics, self.permits
        if metrics.models(model) != model:
            return  # several models have this label, and a gauge would show only one of them
        metrics.model_in_flight.labels(model).set_function(lambda: permits.used_by(model))
        metrics.model_in_flight_max.labels(model).set_function(lambda: permits.limit_of(model))
        metrics.circuit_open.labels(model).set_function(lambda: router.all_own_circuits_open)
