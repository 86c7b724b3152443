"""A worker takes another slice of a model if it could send more lines than its slices have ready."""

from batchwright.activities.services.worker_slices.slice_demand import MAX_SLICES
from batchwright.rules.limits.rate_allocation import ALL_MODELS
from tests.activities.services.worker_slices.slice_demand_fixture import MODEL, PERMITS, Worker


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


def test_a_slice_of_another_tenant_is_kept_if_the_worker_could_send_its_lines() -> None:
    worker = Worker()
    busy = worker.run(PERMITS + 1, "busy")
    worker.wait_for_batches(busy=1, new=1)
    assert worker.wants_another()
    worker.demand.lines_read(busy, 1, lambda: 1)
    assert not worker.returns("busy")


# Slices that others wait for


def test_queues_of_removed_models_are_dropped_when_their_slices_have_ended() -> None:
    worker = Worker()
    with worker.demand.holding(MODEL, MODEL, "default", "batch") as held:
        worker.demand.retain_only([])
        assert not worker.demand.decide_yield(held)
    worker.demand.retain_only([])
    assert worker.wants_another()
