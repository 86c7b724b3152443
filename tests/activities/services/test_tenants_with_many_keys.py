"""A tenant whose batches have many priorities and sizes gets no more than its share of a worker.

Temporal shares the slices in its queue by fairness key. Each priority and size class of a tenant has its own
fairness key.
"""

import heapq
import itertools
import random
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest

from batchwright.activities.services.worker_slices.held_slices import HeldSlice
from batchwright.activities.services.worker_slices.slice_demand import SliceDemand
from batchwright.inference.limits.adaptive_backend_limits import AdaptiveLimitPolicy, BackendLimits
from batchwright.inference.limits.concurrency_limiter import ConcurrencyLimiter, Permit, PermitRequest
from batchwright.inference.limits.memory_budget import MemoryBudget
from batchwright.telemetry.metrics import Metrics

MODEL, PERMITS, LINES = "alpha", 16, 64
STEP_SECONDS = 0.05
WAITING_SECONDS = 0.5  # between two reads of the batches that wait
SLICES = 32  # of each batch that are scheduled at once


@dataclass(frozen=True)
class Batch:
    """A batch that never ends. Each batch here has its own fairness key in Temporal."""

    tenant: str
    id: str


class TemporalQueue:
    """A task queue of Temporal that serves all fairness keys in turn. Tasks with the same key keep their
    order.
    """

    def __init__(self) -> None:
        self._tasks: list[tuple[int, int, Batch]] = []
        self._last: dict[Batch, int] = {}
        self._level, self._numbers = 0, itertools.count()

    def add(self, batch: Batch) -> None:
        self._last[batch] = max(self._last.get(batch, 0) + 1, self._level)
        heapq.heappush(self._tasks, (self._last[batch], next(self._numbers), batch))

    def take(self) -> Batch:
        self._level, _, batch = heapq.heappop(self._tasks)
        return batch


@dataclass(eq=False)
class Slice:
    batch: Batch
    held: HeldSlice
    exits: ExitStack
    ready: int = LINES
    unsettled: int = LINES
    slot: object = field(default_factory=object)


class Worker:
    """A worker that polls the queue while it wants another slice. Responses take one to three seconds."""

    def __init__(self, batches: list[Batch]) -> None:
        self._now, self._random, self._batches = 0.0, random.Random(1), batches
        policy = AdaptiveLimitPolicy(adaptive=False, ceiling=100)
        backends = BackendLimits(policy, lambda model: [], Metrics(), lambda: self._now)
        self._limiter = ConcurrencyLimiter(
            total=PERMITS + 1, model_limit=lambda _: PERMITS, backends=backends
        )
        budget = MemoryBudget(1 << 30)
        self._demand = SliceDemand(self._limiter, budget, lambda _: False, clock=lambda: self._now)
        self._queue, self._due = TemporalQueue(), list[tuple[float, int, Permit, Slice]]()
        self._numbers, self._in_flight = itertools.count(), Counter[str]()
        self.used, self.held, self.most_held = Counter[str](), 0, 0
        for batch in batches:
            for _ in range(SLICES):
                self._queue.add(batch)

    def run(self, seconds: float) -> None:
        """Run for `seconds` in steps. At each step, add each tenant's requests in flight to its number in
        `used`.
        """
        waiting = Counter(batch.tenant for batch in self._batches)
        for step in range(int(seconds / STEP_SECONDS)):
            self._now += STEP_SECONDS
            if step % int(WAITING_SECONDS / STEP_SECONDS) == 0:
                self._demand.set_waiting({MODEL: waiting})
            while self._due and self._due[0][0] <= self._now:
                self._end_request(*heapq.heappop(self._due)[2:])
            if self._demand.wants_another(MODEL):
                self._begin(self._queue.take())
            self.used += self._in_flight

    def _begin(self, batch: Batch) -> None:
        exits = ExitStack()
        slot = object()
        self._demand.take(MODEL, slot)
        held = exits.enter_context(self._demand.holding(MODEL, MODEL, batch.tenant, batch.id))
        found = Slice(batch, held, exits, slot=slot)
        self.held += 1
        self.most_held = max(self.held, self.most_held)
        if held.is_surplus:
            return self._end_slice(found)
        self._demand.lines_read(held, LINES, lambda: found.ready)
        place = MODEL, batch.tenant, 1.0, batch.id, next(self._numbers)
        request = PermitRequest(*place, lambda permit: self._send(found, permit, request))
        self._limiter.enqueue(request)

    def _send(self, found: Slice, permit: Permit, request: PermitRequest) -> None:
        found.ready -= 1
        self._in_flight[found.batch.tenant] += 1
        ends_at = self._now + self._random.uniform(1, 3)
        heapq.heappush(self._due, (ends_at, next(self._numbers), permit, found))
        if found.ready:
            self._limiter.enqueue(request)

    def _end_request(self, permit: Permit, found: Slice) -> None:
        self._in_flight[found.batch.tenant] -= 1
        found.unsettled -= 1
        permit.release()
        if not found.unsettled:
            self._end_slice(found)

    def _end_slice(self, found: Slice) -> None:
        found.exits.close()
        self._demand.release(MODEL, found.slot)
        self.held -= 1
        self._queue.add(found.batch)


@pytest.mark.parametrize("keys", [1, 5, 15, 25])
def test_a_tenant_with_many_fairness_keys_gets_half_of_a_worker_that_it_shares_with_one_that_has_one(
    keys: int,
) -> None:
    worker = Worker([Batch("many", f"batch {number}") for number in range(keys)] + [Batch("one", "batch")])
    worker.run(300)
    assert worker.used["one"] / worker.used.total() == pytest.approx(1 / 2, abs=0.05)


def test_a_worker_holds_few_slices_of_a_tenant_with_many_fairness_keys() -> None:
    worker = Worker([Batch("many", f"batch {number}") for number in range(15)] + [Batch("one", "batch")])
    worker.run(300)
    assert worker.most_held <= 20
