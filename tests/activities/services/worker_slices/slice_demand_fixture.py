"""A worker whose slices and permits the test controls. The tests check which slices the worker takes."""

from contextlib import ExitStack
from dataclasses import dataclass, field

from batchwright.activities.services.worker_slices.held_slices import HeldSlice
from batchwright.activities.services.worker_slices.slice_demand import SliceDemand
from batchwright.inference.limits.adaptive_backend_limits import AdaptiveLimitPolicy, BackendLimits
from batchwright.inference.limits.concurrency_limiter import ConcurrencyLimiter, Permit, PermitRequest
from batchwright.inference.limits.memory_budget import MemoryBudget
from batchwright.inference.limits.tenant_and_model_limits import TenantAndModelLimits, TenantSettings
from batchwright.rules.dispatch.batch_ranking import BatchRanks
from batchwright.telemetry.metrics import Metrics

MODEL, PERMITS = "alpha", 10


class Shares(TenantSettings):
    """The settings of tenants: caps on requests in flight, and the order in which batches get permits. A test
    sets them.
    """

    def __init__(self, caps: dict[str, int], order: BatchRanks) -> None:
        super().__init__()
        self.max_in_flight, self._order = caps, order

    def ranks(self, model: str) -> BatchRanks:
        return self._order


@dataclass
class Worker:
    """A worker with ten permits for the model."""

    queue: str = MODEL
    is_blocked: bool = False
    has_share: bool = True
    now: float = 100.0
    budget: MemoryBudget = field(default_factory=lambda: MemoryBudget(1000))

    def __post_init__(self) -> None:
        self.slices, self.caps, self.order = ExitStack(), dict[str, int](), BatchRanks()
        policy = AdaptiveLimitPolicy(adaptive=False, ceiling=100)
        backends = BackendLimits(policy, lambda model: [], Metrics())
        shares = Shares(self.caps, self.order)
        self.limiter = ConcurrencyLimiter(
            total=100, model_limit=lambda _: PERMITS, backends=backends, limits=TenantAndModelLimits(shares)
        )
        self.demand = SliceDemand(
            self.limiter, self.budget, lambda _: self.is_blocked, lambda _: self.has_share, lambda: self.now
        )

    def wants_another(self) -> bool:
        return self.demand.wants_another(self.queue)

    def wait_for_batches(self, **batches: int) -> None:
        """Set how many batches of each tenant have unsettled lines."""
        self.demand.set_waiting({MODEL: batches})

    def take(self, tenant: str = "default", batch: str = "batch") -> HeldSlice:
        """Take a slice whose lines are not read yet, and return it."""
        self.demand.take(self.queue, object())
        return self.slices.enter_context(self.demand.holding(self.queue, MODEL, tenant, batch))

    def returns(self, tenant: str = "default", batch: str = "batch") -> bool:
        """Take a slice. Return True if the worker gives it back to its task queue immediately."""
        slot = object()
        self.demand.take(self.queue, slot)
        with self.demand.holding(self.queue, MODEL, tenant, batch) as held:
            pass
        self.demand.release(self.queue, slot)
        return held.is_surplus

    def run(self, ready: int, tenant: str = "default", batch: str = "batch") -> HeldSlice:
        """Take a slice that has `ready` lines ready to be sent, and return it."""
        held = self.take(tenant, batch)
        self.demand.lines_read(held, ready, lambda: ready)
        return held

    def send_and_answer(self, requests: int) -> None:
        for number in range(requests):
            self.limiter.enqueue(PermitRequest(MODEL, "default", 1.0, "batch", number, Permit.release))
