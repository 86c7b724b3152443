"""A worker takes another slice of a model if it could send more lines than its slices have ready."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest

from batchwright.activities.services.held_slices import HeldSlice
from batchwright.activities.services.slice_demand import MAX_SLICES, SliceDemand
from batchwright.inference.limits.adaptive_backend_limits import AdaptiveLimitPolicy, BackendLimits
from batchwright.inference.limits.concurrency_limiter import ConcurrencyLimiter, Permit, PermitRequest
from batchwright.inference.limits.memory_budget import MemoryBudget
from batchwright.inference.limits.tenant_and_model_limits import BatchWeights, Limit, TenantAndModelLimits
from batchwright.rules.dispatch.batch_ranking import BatchRanks
from batchwright.rules.limits.rate_allocation import ALL_MODELS
from batchwright.telemetry.metrics import Metrics

MODEL, PERMITS = "alpha", 10


class Shares(BatchWeights):
    """Caps of tenants on their requests in flight, and the order of batches. A test sets them."""

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
        policy = AdaptiveLimitPolicy(adaptive=False, ceiling=100, shared=False)
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
        """Take a slice. Return True if the worker returns it to its queue at once."""
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


def test_a_worker_without_slices_takes_one() -> None:
    assert Worker().wants_another()


def test_lines_for_all_free_permits_and_one_more_are_enough() -> None:
    worker = Worker()
    worker.run(PERMITS)
    assert worker.wants_another()  # one more is sent as soon as one of them has its response
    worker.run(1)
    assert not worker.wants_another()


def test_a_slice_that_waits_for_its_last_responses_does_not_keep_the_worker_from_the_next_one() -> None:
    worker = Worker()
    held = worker.run(100)
    assert not worker.wants_another()
    held.drain()
    assert worker.wants_another()


def test_a_slice_that_is_being_read_counts_as_an_average_one() -> None:
    worker = Worker()
    worker.take()
    assert not worker.wants_another()


def test_quick_responses_need_more_lines_in_reserve() -> None:
    worker = Worker()
    worker.run(50)
    assert not worker.wants_another()
    worker.now += 1
    worker.send_and_answer(100)
    assert worker.wants_another()


def test_a_few_responses_that_arrive_together_need_no_lines_in_reserve() -> None:
    worker = Worker()
    worker.run(22)
    for responses in [2] * 8 + [5]:  # 8 a second, then 20 a second for a quarter of one
        worker.now += 0.25
        worker.send_and_answer(responses)
        assert not worker.wants_another()


def test_a_model_with_a_slice_that_waits_for_memory_gets_no_other_slice() -> None:
    worker = Worker()
    worker.budget.reserve(400)
    assert worker.wants_another()
    held = worker.run(0)
    held.memory = worker.budget.reserve(400)
    assert not worker.wants_another()
    assert worker.demand.wants_another("beta")


def test_a_model_whose_circuit_is_open_gets_few_slices() -> None:
    worker = Worker(is_blocked=True)
    for _ in range(4):
        assert worker.wants_another()
        worker.run(0)
    assert not worker.wants_another()


def test_a_worker_runs_a_limited_number_of_slices() -> None:
    worker = Worker()
    for _ in range(MAX_SLICES):
        assert worker.wants_another()
        worker.run(0)
    assert not worker.wants_another()


def test_a_released_slice_lets_the_worker_take_another() -> None:
    worker = Worker()
    slots = [object() for _ in range(MAX_SLICES)]
    for slot in slots:
        worker.demand.take(MODEL, slot)
    worker.demand.release(MODEL, slots[0])
    worker.demand.release(MODEL, object())  # a slot that was reserved and never used
    assert not worker.wants_another()  # those that are not read yet have lines enough
    for slot in slots:
        worker.demand.release(MODEL, slot)
    assert worker.wants_another()


def test_the_shared_queue_gives_a_limited_number_of_slices_that_still_send() -> None:
    worker = Worker(queue=ALL_MODELS)
    slices = [worker.run(5) for _ in range(16)]
    assert not worker.wants_another()
    slices[0].drain()
    assert worker.wants_another()


def test_a_slice_whose_end_is_not_confirmed_yet_has_no_lines() -> None:
    worker = Worker()
    worker.demand.take(MODEL, "slot")
    with worker.demand.holding(MODEL, MODEL, "default", "batch"):
        assert not worker.wants_another()
    assert worker.wants_another()
    worker.demand.release(MODEL, "slot")
    worker.take()
    assert not worker.wants_another()


def test_a_worker_that_may_not_use_a_backend_leaves_its_slices_to_others() -> None:
    assert not Worker(has_share=False).wants_another()


# Tenants and batches without a slice here


def test_a_new_tenant_gets_a_slice_although_the_worker_has_enough_to_send() -> None:
    worker = Worker()
    worker.run(1000, "busy")
    worker.wait_for_batches(busy=1)
    assert not worker.wants_another()
    worker.wait_for_batches(busy=1, new=1)
    assert worker.wants_another()
    assert not worker.wants_another()  # its slices may all be at another worker: it is sought again later
    worker.wait_for_batches(busy=1, new=1)
    assert not worker.wants_another()
    worker.now += 30
    worker.wait_for_batches(busy=1, new=1)
    assert worker.wants_another()
    worker.run(10, "new")
    worker.wait_for_batches(busy=1, new=1)
    assert not worker.wants_another()


def test_a_tenant_whose_slices_have_no_lines_left_is_sought_again() -> None:
    worker = Worker()
    worker.run(1000, "busy")
    worker.wait_for_batches(busy=1, small=2)
    assert worker.wants_another()
    small = worker.run(10, "small", "first")
    worker.wait_for_batches(busy=1, small=1)
    assert not worker.wants_another()
    small.drain()
    worker.wait_for_batches(busy=1, small=1)
    assert worker.wants_another()


def test_slices_of_others_are_returned_until_one_of_the_tenant_comes_that_is_sought() -> None:
    worker = Worker()
    worker.run(1000, "busy")
    worker.wait_for_batches(busy=1, new=1)
    for _ in range(5):
        assert worker.wants_another()
        assert worker.returns("busy", "any batch")
    assert worker.wants_another()
    assert not worker.returns("new")
    assert worker.wants_another()  # the slice of the test before has ended
    worker.run(1000, "new")
    assert not worker.wants_another()


def test_a_slice_of_another_tenant_is_kept_if_the_worker_could_send_its_lines() -> None:
    worker = Worker()
    busy = worker.run(PERMITS + 1, "busy")
    worker.wait_for_batches(busy=1, new=1)
    assert worker.wants_another()
    worker.demand.lines_read(busy, 1, lambda: 1)
    assert not worker.returns("busy")


def test_a_tenant_is_sought_again_at_once_after_a_slice_of_another_new_tenant_came() -> None:
    worker = Worker()
    worker.run(1000, "busy")
    worker.wait_for_batches(busy=1, one=1, two=1)
    assert worker.wants_another()
    worker.run(1000, "two")
    assert worker.wants_another()
    worker.run(1000, "one")
    assert not worker.wants_another()


def test_a_search_for_one_more_batch_delays_no_search_for_a_tenant_without_slices() -> None:
    worker = Worker()
    worker.run(1000, "busy", "first")
    worker.wait_for_batches(busy=2)
    assert not worker.wants_another()
    worker.now += 30
    worker.wait_for_batches(busy=2)
    assert worker.wants_another()
    assert worker.returns("busy", "first")
    worker.wait_for_batches(busy=2, new=1)
    assert worker.wants_another()


def test_a_tenant_that_reaches_its_cap_for_a_moment_is_not_sought_earlier() -> None:
    worker = Worker()
    worker.run(1000, "busy")
    worker.wait_for_batches(busy=1, capped=1)
    assert worker.wants_another()
    worker.caps["capped"] = 1
    permits: list[Permit] = []
    for number in range(2):  # the second request waits, because of the cap
        worker.limiter.enqueue(PermitRequest(MODEL, "capped", 1.0, "batch", number, permits.append))
    worker.wait_for_batches(busy=1, capped=1)
    assert not worker.wants_another()
    permits[0].release()
    worker.wait_for_batches(busy=1, capped=1)
    assert not worker.wants_another()


@pytest.mark.parametrize("slices", [1, 20])
def test_no_tenant_is_sought_for_a_while_after_many_slices_of_others_came(slices: int) -> None:
    worker = Worker()
    for _ in range(slices):
        worker.run(1000, "busy")
    worker.wait_for_batches(busy=1, elsewhere=1)
    for _ in range(32):
        assert worker.wants_another()
        assert worker.returns("busy")
    worker.wait_for_batches(busy=1, elsewhere=1, too=1)
    assert not worker.wants_another()
    worker.now += 30
    worker.wait_for_batches(busy=1, elsewhere=1, too=1)
    assert worker.wants_another()


def test_slices_of_every_new_tenant_are_taken_at_once() -> None:
    worker = Worker()
    worker.run(1000, "busy")
    worker.wait_for_batches(busy=1, one=1, two=1)
    assert [worker.wants_another() for _ in range(3)] == [True, True, False]


def test_a_slice_of_another_batch_of_the_same_tenant_is_taken_after_a_delay() -> None:
    worker = Worker()
    worker.run(1000, "busy", "first")
    worker.wait_for_batches(busy=2)
    assert not worker.wants_another()
    worker.now += 30
    worker.wait_for_batches(busy=2)
    assert worker.wants_another()
    worker.run(1000, "busy", "second")
    worker.now += 30
    worker.wait_for_batches(busy=2)
    assert not worker.wants_another()


def test_a_batch_that_goes_behind_others_is_left_to_workers_that_could_send_its_lines() -> None:
    worker = Worker()
    worker.run(1000, "busy", "first")
    worker.order.first = [("busy", "first")]
    worker.wait_for_batches(busy=3)
    assert not worker.wants_another()
    worker.now += 30
    worker.wait_for_batches(busy=3)
    assert worker.wants_another()
    assert worker.returns("busy", "later")


def test_a_search_for_the_batch_that_goes_first_keeps_no_other() -> None:
    worker = Worker()
    worker.run(1000, "busy", "large")
    worker.order.first = [("busy", "small")]
    worker.wait_for_batches(busy=3)
    assert worker.wants_another()
    assert worker.returns("busy", "larger")
    worker.now += 30
    worker.wait_for_batches(busy=3)
    assert worker.wants_another()
    assert not worker.returns("busy", "small")


# Slices that others wait for


def test_on_the_shared_queue_slices_yield_to_batches_of_its_models_that_have_none_with_lines() -> None:
    worker = Worker(queue=ALL_MODELS)
    slices = [worker.run(5, "busy") for _ in range(16)]
    worker.demand.set_waiting({MODEL: {"busy": 1, "new": 1}, "of another queue": {"new": 9}}, [MODEL])
    assert [worker.demand.must_yield(held) for held in slices[:2]] == [True, False]
    worker.demand.set_waiting({MODEL: {"busy": 1}}, [MODEL])
    assert not worker.demand.must_yield(slices[1])


def test_of_slices_that_share_a_limit_all_but_a_few_are_spare() -> None:
    worker = Worker(queue=ALL_MODELS)
    slices = [worker.run(5, "busy") for _ in range(5)]
    other = worker.run(5, "other")
    assert worker.demand.is_spare(slices[0], Limit.TENANT_REQUESTS)
    assert worker.demand.is_spare(other, Limit.MODEL_TOKENS)
    assert not worker.demand.is_spare(other, Limit.TENANT_REQUESTS)
    slices[0].is_yielding = True
    assert not worker.demand.is_spare(slices[1], Limit.TENANT_REQUESTS)


def test_a_model_with_a_queue_of_its_own_has_no_spare_slices() -> None:
    worker = Worker()
    slices = [worker.run(5, "busy") for _ in range(16)]
    assert not worker.demand.is_spare(slices[0], Limit.TENANT_REQUESTS)


def test_no_slice_yields_while_the_worker_can_take_more_slices() -> None:
    worker = Worker()
    held = worker.run(1000)
    worker.wait_for_batches(default=1, other=50)
    assert not worker.demand.must_yield(held)


def test_no_slice_yields_while_every_batch_has_a_slice() -> None:
    worker = Worker()
    slices = [worker.run(1) for _ in range(MAX_SLICES)]
    worker.wait_for_batches(default=1)
    assert not worker.demand.must_yield(slices[0])


def test_as_many_slices_yield_as_batches_wait() -> None:
    worker = Worker()
    slices = [worker.run(1) for _ in range(MAX_SLICES)]
    worker.wait_for_batches(default=1, other=2)
    assert [worker.demand.must_yield(held) for held in slices[:3]] == [True, True, False]
    assert worker.demand.must_yield(slices[0])


def test_no_slice_yields_to_a_tenant_whose_cap_keeps_its_slices_waiting() -> None:
    worker = Worker()
    slices = [worker.run(1) for _ in range(MAX_SLICES)]
    worker.wait_for_batches(default=1, capped=2)
    worker.caps["capped"] = 1
    for number in range(2):  # the second request waits, because of the cap
        worker.limiter.enqueue(PermitRequest(MODEL, "capped", 1.0, "batch", number, lambda _: None))
    assert not worker.demand.must_yield(slices[0])
    worker.wait_for_batches(default=1, capped=2, other=1)
    assert worker.demand.must_yield(slices[0])


def test_a_slice_yields_to_one_that_waits_for_memory() -> None:
    worker = Worker()
    first, second, without_memory = worker.run(1), worker.run(1), worker.run(1)
    first.memory, second.memory = worker.budget.reserve(200), worker.budget.reserve(200)
    waiting = worker.budget.reserve(400)
    assert not worker.demand.must_yield(without_memory)
    assert worker.demand.must_yield(first)
    assert not worker.demand.must_yield(second)
    worker.budget.shrink(first.memory, 0)
    assert not waiting.granted
    assert worker.demand.must_yield(second)  # the first has given back its memory, and it is not enough
    worker.budget.shrink(second.memory, 100)
    assert waiting.granted


def test_queues_of_removed_models_are_dropped_when_their_slices_have_ended() -> None:
    worker = Worker()
    with worker.demand.holding(MODEL, MODEL, "default", "batch") as held:
        worker.demand.retain_only([])
        assert not worker.demand.must_yield(held)
    worker.demand.retain_only([])
    assert worker.wants_another()


def test_a_batch_that_goes_first_is_sought_at_once_though_others_have_lines_here() -> None:
    worker = Worker()
    worker.run(10 * PERMITS, batch="large")
    worker.wait_for_batches(default=2)
    assert not worker.wants_another()
    worker.order.first = [("default", "small")]
    worker.wait_for_batches(default=2)
    assert worker.wants_another()
    worker.run(5, batch="small")
    assert not worker.wants_another()


def test_a_batch_that_goes_first_and_is_not_found_is_not_sought_again_at_once() -> None:
    worker = Worker()
    worker.run(10 * PERMITS, batch="large")
    worker.wait_for_batches(default=2)
    worker.order.first = [("default", "small")]
    assert worker.wants_another()
    worker.run(10 * PERMITS, batch="large")  # slices of the small batch are at other workers
    assert not worker.wants_another()
    worker.now += 31
    worker.wait_for_batches(default=2)
    assert worker.wants_another()


def test_a_batch_whose_slice_here_has_no_lines_left_is_sought_again_at_once() -> None:
    worker = Worker()
    worker.run(10 * PERMITS, batch="large")
    worker.wait_for_batches(default=2)
    worker.order.first = [("default", "first")]
    assert worker.wants_another()
    worker.run(5, batch="first").drain()
    assert worker.wants_another()


def test_the_only_batch_of_a_tenant_is_not_sought() -> None:
    worker = Worker()
    worker.run(10 * PERMITS, tenant="other", batch="large")
    worker.run(10 * PERMITS).drain()
    worker.order.first = [("default", "batch")]
    assert not worker.wants_another()


@pytest.mark.parametrize("batches", [1, 16])
def test_no_batch_is_sought_while_many_slices_have_lines(batches: int) -> None:
    worker = Worker()
    slices = [worker.run(PERMITS, batch=f"batch {number % batches}") for number in range(16)]
    worker.wait_for_batches(default=batches + 1)
    worker.order.first = [("default", "small")]
    assert not worker.wants_another()
    slices[0].drain()
    worker.wait_for_batches(default=batches + 1)
    assert worker.wants_another()


def test_first_batches_are_compared_with_the_slices_here_once_after_each_read() -> None:
    class First(list[tuple[str, str]]):
        walks = 0

        def __iter__(self) -> Iterator[tuple[str, str]]:
            self.walks += 1
            return super().__iter__()

    worker, first = Worker(), First([("default", "small")])
    worker.order.first = first
    worker.run(10 * PERMITS, batch="large")
    worker.run(5, batch="small")
    worker.wait_for_batches(default=2)
    assert not worker.wants_another()
    walks = first.walks
    assert not any(worker.wants_another() for _ in range(10))
    assert first.walks == walks
    worker.wait_for_batches(default=2)
    assert not worker.wants_another()
    assert first.walks == 2 * walks
