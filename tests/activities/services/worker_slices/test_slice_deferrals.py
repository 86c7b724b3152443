"""Metrics of deferred slices."""

import weakref

from batchwright.activities.services.worker_slices.slice_deferrals import DeferralMetrics
from batchwright.telemetry.metrics import Metrics


class Counts:
    def __init__(self) -> None:
        self.metrics = Metrics()

    def of(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value("batchwright_" + name, labels)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_deferred_slice_is_shown_once_per_batch_and_model_until_it_continues() -> None:
    counts = Counts()
    deferrals = DeferralMetrics(counts.metrics, Clock())
    for _ in range(3):
        deferrals.record("batch_1", "a", "capacity", 5.0)
    deferrals.record("batch_2", "a", "retry", 5.0)
    assert counts.of("model_group_deferrals_total", model="a", reason="capacity") == 3
    assert counts.of("batches_waiting", reason="capacity") == 1
    deferrals.clear("batch_1", "a")
    assert counts.of("batches_waiting", reason="capacity") == 0
    assert counts.of("batches_waiting", reason="retry") == 1


def test_a_slice_that_continues_on_another_worker_is_forgotten_a_minute_after_it_was_due() -> None:
    counts, clock = Counts(), Clock()
    DeferralMetrics(counts.metrics, clock).record("batch_1", "a", "no_backend", 30.0)
    clock.now = 89.0
    assert counts.of("batches_waiting", reason="no_backend") == 1
    clock.now = 91.0
    assert counts.of("batches_waiting", reason="no_backend") == 0


def test_lines_without_a_result_are_counted_by_the_reason_of_their_deferral() -> None:
    counts = Counts()
    deferrals = DeferralMetrics(counts.metrics, Clock())
    deferrals.record("batch_1", "a", "capacity", 5.0, lines=30)
    deferrals.record("batch_1", "a", "capacity", 5.0, lines=12)
    deferrals.record("batch_2", "a", "dependency", 5.0)  # its lines were not read
    assert counts.of("model_group_deferred_items_total", model="a", reason="capacity") == 42
    assert counts.of("model_group_deferred_items_total", model="a", reason="dependency") == 0


def test_deferrals_that_ended_are_forgotten_even_if_nobody_reads_the_metrics() -> None:
    class BatchId(str):
        __slots__ = ("__weakref__",)

    counts, clock, first = Counts(), Clock(), BatchId("batch_1")
    deferrals, forgotten = DeferralMetrics(counts.metrics, clock), weakref.ref(first)
    deferrals.record(first, "a", "retry", 5.0)
    del first
    clock.now = 100.0
    deferrals.record("batch_2", "a", "retry", 5.0)
    assert forgotten() is None
