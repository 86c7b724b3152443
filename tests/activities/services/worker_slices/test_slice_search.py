"""A worker seeks slices of tenants and batches if it has no slice of them with lines left to send."""

from collections.abc import Iterator

import pytest

from batchwright.inference.limits.concurrency_limiter import Permit, PermitRequest
from tests.activities.services.worker_slices.slice_demand_fixture import MODEL, PERMITS, Worker


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


def test_a_batch_that_goes_first_is_sought_at_once_though_others_have_lines_here() -> None:
    worker = worker_with_a_large_batch()
    assert not worker.wants_another()
    worker.order.first = [("default", "small")]
    worker.wait_for_batches(default=2)
    assert worker.wants_another()
    worker.run(5, batch="small")
    assert not worker.wants_another()


def test_a_batch_that_goes_first_and_is_not_found_is_not_sought_again_at_once() -> None:
    worker = worker_with_a_large_batch()
    worker.order.first = [("default", "small")]
    assert worker.wants_another()
    worker.run(10 * PERMITS, batch="large")  # slices of the small batch are at other workers
    assert not worker.wants_another()
    worker.now += 31
    worker.wait_for_batches(default=2)
    assert worker.wants_another()


def test_a_batch_whose_slice_here_has_no_lines_left_is_sought_again_at_once() -> None:
    worker = worker_with_a_large_batch()
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


def worker_with_a_large_batch() -> Worker:
    """Return a worker that has a slice of one batch, while two batches of the tenant have unsettled lines."""
    worker = Worker()
    worker.run(10 * PERMITS, batch="large")
    worker.wait_for_batches(default=2)
    return worker
