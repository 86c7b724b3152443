"""Slices that give up their slot of the worker to a tenant or batch that has none."""

from batchwright.activities.services.worker_slices.slice_demand import MAX_SLICES
from batchwright.inference.limits.concurrency_limiter import PermitRequest
from batchwright.inference.limits.tenant_and_model_limits import Limit
from batchwright.rules.limits.rate_allocation import ALL_MODELS
from tests.activities.services.worker_slices.slice_demand_fixture import MODEL, Worker


def test_on_the_shared_queue_slices_yield_to_batches_of_its_models_that_have_none_with_lines() -> None:
    worker = Worker(queue=ALL_MODELS)
    slices = [worker.run(5, "busy") for _ in range(16)]
    worker.demand.set_waiting({MODEL: {"busy": 1, "new": 1}, "of another queue": {"new": 9}}, [MODEL])
    assert [worker.demand.decide_yield(held) for held in slices[:2]] == [True, False]
    worker.demand.set_waiting({MODEL: {"busy": 1}}, [MODEL])
    assert not worker.demand.decide_yield(slices[1])


def test_of_slices_that_share_a_limit_a_few_are_enough_to_use_it_up() -> None:
    worker = Worker(queue=ALL_MODELS)
    slices = [worker.run(5, "busy") for _ in range(5)]
    other = worker.run(5, "other")
    assert worker.demand.others_use_up_limit(slices[0], Limit.TENANT_REQUESTS)
    assert worker.demand.others_use_up_limit(other, Limit.MODEL_TOKENS)
    assert not worker.demand.others_use_up_limit(other, Limit.TENANT_REQUESTS)
    slices[0].is_yielding = True
    assert not worker.demand.others_use_up_limit(slices[1], Limit.TENANT_REQUESTS)


def test_slices_of_a_model_with_a_queue_of_its_own_keep_their_places_at_a_limit() -> None:
    worker = Worker()
    slices = [worker.run(5, "busy") for _ in range(16)]
    assert not worker.demand.others_use_up_limit(slices[0], Limit.TENANT_REQUESTS)


def test_no_slice_yields_while_the_worker_can_take_more_slices() -> None:
    worker = Worker()
    held = worker.run(1000)
    worker.wait_for_batches(default=1, other=50)
    assert not worker.demand.decide_yield(held)


def test_no_slice_yields_while_every_batch_has_a_slice() -> None:
    worker = Worker()
    slices = [worker.run(1) for _ in range(MAX_SLICES)]
    worker.wait_for_batches(default=1)
    assert not worker.demand.decide_yield(slices[0])


def test_as_many_slices_yield_as_batches_wait() -> None:
    worker = Worker()
    slices = [worker.run(1) for _ in range(MAX_SLICES)]
    worker.wait_for_batches(default=1, other=2)
    assert [worker.demand.decide_yield(held) for held in slices[:3]] == [True, True, False]
    assert worker.demand.decide_yield(slices[0])


def test_no_slice_yields_to_a_tenant_whose_cap_keeps_its_slices_waiting() -> None:
    worker = Worker()
    slices = [worker.run(1) for _ in range(MAX_SLICES)]
    worker.wait_for_batches(default=1, capped=2)
    worker.caps["capped"] = 1
    for number in range(2):  # the second request waits, because of the cap
        worker.limiter.enqueue(PermitRequest(MODEL, "capped", 1.0, "batch", number, lambda _: None))
    assert not worker.demand.decide_yield(slices[0])
    worker.wait_for_batches(default=1, capped=2, other=1)
    assert worker.demand.decide_yield(slices[0])


def test_a_slice_yields_to_one_that_waits_for_memory() -> None:
    worker = Worker()
    first, second, without_memory = worker.run(1), worker.run(1), worker.run(1)
    first.memory, second.memory = worker.budget.reserve(200), worker.budget.reserve(200)
    waiting = worker.budget.reserve(400)
    assert not worker.demand.decide_yield(without_memory)
    assert worker.demand.decide_yield(first)
    assert not worker.demand.decide_yield(second)
    worker.budget.shrink(first.memory, 0)
    assert not waiting.granted
    assert worker.demand.decide_yield(second)  # the first has given back its memory, and it is not enough
    worker.budget.shrink(second.memory, 100)
    assert waiting.granted
