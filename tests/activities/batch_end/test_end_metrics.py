"""Metrics of ended batches."""

from datetime import datetime

import pytest

from batchwright.activities.batch_end.end_metrics import (
    count_completion,
    count_invalid_input,
    count_skipped,
    size_bucket,
)
from batchwright.contracts.terms import BatchStatus
from batchwright.database.records import BatchRow
from batchwright.telemetry.metrics import Metrics
from tests.integration.database.rows import after, an_order

ENDS_AT = after(100)


def a_row(status: BatchStatus, **changes: object) -> BatchRow:
    """Return a batch's row: ingestion began 2 s and execution 10 s after its creation, and its deadline is at
    60 s.
    """
    row = BatchRow(
        order=an_order(deadline=after(60)),
        status=status,
        ingestion_began_at=after(2),
        in_progress_at=after(10),
        total=500,
    )
    return row.model_copy(update=changes)


class Counts:
    def __init__(self) -> None:
        self.metrics = Metrics()

    def of(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value("batchwright_" + name, labels)


@pytest.mark.parametrize(
    ("status", "begun", "result", "reason"),
    [
        (BatchStatus.COMPLETED, after(10), "success", "none"),
        (BatchStatus.FAILED, after(10), "failed", "system_error"),
        (BatchStatus.CANCELLED, after(10), "cancelled", "none"),
        (BatchStatus.EXPIRED, after(10), "expired", "expired_execution"),
        (BatchStatus.EXPIRED, after(61), "expired", "expired_dequeue"),
        (BatchStatus.EXPIRED, None, "expired", "expired_dequeue"),
    ],
)
def test_an_end_is_counted_by_result_and_reason(
    status: BatchStatus, begun: datetime | None, result: str, reason: str
) -> None:
    counts = Counts()
    count_completion(counts.metrics, a_row(status, in_progress_at=begun), ENDS_AT)
    assert counts.of("jobs_processed_total", result=result, reason=reason) == 1
    assert counts.of("batch_job_e2e_latency_seconds_sum", status=status) == 100


def test_a_completed_batch_without_a_success_says_so() -> None:
    counts = Counts()
    count_completion(counts.metrics, a_row(BatchStatus.COMPLETED, failed=500), ENDS_AT)
    assert counts.of("jobs_processed_total", result="success", reason="all_lines_failed") == 1


def test_a_completed_batch_with_a_success_and_failures_is_a_plain_success() -> None:
    counts = Counts()
    count_completion(counts.metrics, a_row(BatchStatus.COMPLETED, completed=1, failed=499), ENDS_AT)
    assert counts.of("jobs_processed_total", result="success", reason="none") == 1


def test_a_machine_whose_clock_is_behind_counts_no_negative_time() -> None:
    counts = Counts()
    count_completion(counts.metrics, a_row(BatchStatus.COMPLETED, ingestion_began_at=after(101)), ENDS_AT)
    assert counts.of("job_processing_duration_seconds_sum", size_bucket="1000") == 0


def test_processing_is_timed_with_its_ingestion_by_size() -> None:
    counts = Counts()
    count_completion(counts.metrics, a_row(BatchStatus.COMPLETED), ENDS_AT)
    assert counts.of("job_processing_duration_seconds_sum", size_bucket="1000") == 98


@pytest.mark.parametrize(
    ("changes", "phase"),
    [
        ({"in_progress_at": None}, "queued"),
        ({}, "in_progress"),
        ({"finalizing_at": after(50)}, "finalizing"),
    ],
)
def test_a_cancellation_is_counted_by_how_far_the_batch_was(changes: dict[str, datetime], phase: str) -> None:
    counts = Counts()
    count_completion(counts.metrics, a_row(BatchStatus.CANCELLED, **changes), ENDS_AT)
    assert counts.of("batch_cancellation_total", phase=phase) == 1


def test_an_input_that_is_wrong_is_no_error_of_the_system() -> None:
    counts = Counts()
    count_invalid_input(counts.metrics, an_order(), 7, after(5), ENDS_AT)
    assert counts.of("jobs_processed_total", result="failed", reason="none") == 1
    assert counts.of("job_processing_duration_seconds_sum", size_bucket="100") == 95


def test_a_step_that_finds_its_batch_ended_is_skipped() -> None:
    counts = Counts()
    count_skipped(counts.metrics)
    assert counts.of("jobs_processed_total", result="skipped", reason="not_runnable_state") == 1
    assert counts.of("batch_startup_recovery_total", status="unknown", action="cleaned_up") == 1


@pytest.mark.parametrize(
    ("lines", "bucket"), [(0, "100"), (100, "100"), (101, "1000"), (50_000, "50000"), (50_001, "more")]
)
def test_there_are_few_size_labels(lines: int, bucket: str) -> None:
    assert size_bucket(lines) == bucket
