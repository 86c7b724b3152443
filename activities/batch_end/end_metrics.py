"""Metrics of ended batches, and of lines that ended without being sent."""

from collections.abc import Mapping
from datetime import datetime

from batchwright.contracts.errors import LineCode
from batchwright.contracts.temporal_payloads.batch import BatchOrder
from batchwright.contracts.terms import BatchStatus
from batchwright.database.records import BatchRow
from batchwright.telemetry.labels import OTHER
from batchwright.telemetry.metrics import Metrics

_SIZE_BUCKETS = ((100, "100"), (1_000, "1000"), (10_000, "10000"), (50_000, "50000"))


def size_bucket(lines: int) -> str:
    """Return the metric label of the size class to which a batch of `lines` lines belongs.

    The label is the greatest number of lines in the class: `1000` for 101 to 1,000 lines. Above 50,000 lines,
    the label is `more`.
    """
    return next((name for most, name in _SIZE_BUCKETS if lines <= most), "more")


def count_completion(metrics: Metrics, row: BatchRow, at: datetime) -> None:
    """Update the metrics for a batch that has ended. Only the process that ended it may call this."""
    metrics.jobs_processed.labels(*_result(row)).inc()
    seconds = (at - row.order.starts_at).total_seconds()
    metrics.e2e_seconds.labels(row.status.value).observe(max(seconds, 0.0))
    if row.ingestion_began_at is not None:
        seconds = (at - row.ingestion_began_at).total_seconds()
        metrics.processing_seconds.labels(size_bucket(row.total)).observe(max(seconds, 0.0))
    if row.status is BatchStatus.CANCELLED:
        metrics.cancellations.labels(_phase(row)).inc()


def count_invalid_input(
    metrics: Metrics, order: BatchOrder, total: int, began_at: datetime, at: datetime
) -> None:
    """Update the metrics for a batch that failed because its input was invalid.

    Args:
        began_at: when ingestion began.
        at: when the validation failed.
    """
    metrics.jobs_processed.labels("failed", "none").inc()
    seconds = (at - began_at).total_seconds()
    metrics.processing_seconds.labels(size_bucket(total)).observe(max(seconds, 0.0))
    metrics.e2e_seconds.labels(BatchStatus.FAILED).observe((at - order.starts_at).total_seconds())


def count_unserved(metrics: Metrics, codes: Mapping[LineCode, int]) -> None:
    """Update the metrics for the lines that failed while the input was read, and are therefore never sent.

    Args:
        codes: number of lines by error code.
    """
    for code, lines in codes.items():
        _count_settled(metrics, OTHER, code, lines)
    if missing := codes.get(LineCode.MODEL_NOT_FOUND, 0):
        metrics.errors.labels("no_backend", OTHER).inc(missing)


def count_missing_lines(metrics: Metrics, code: LineCode, lines: Mapping[str, int]) -> None:
    """Update the metrics for the lines that had no result at the end of the batch, and got the error `code`.

    Args:
        lines: number of these lines by model.
    """
    for model, count in lines.items():
        _count_settled(metrics, model, code, count)


def _count_settled(metrics: Metrics, model: str, code: LineCode, lines: int) -> None:
    if lines:
        metrics.settled_lines.labels(model, code.value).inc(lines)
        metrics.request_errors.labels(model).inc(lines)


def count_skipped(metrics: Metrics) -> None:
    """Count an attempt of an activity that did nothing, because the batch had already ended."""
    metrics.jobs_processed.labels("skipped", "not_runnable_state").inc()
    metrics.recoveries.labels("unknown", "cleaned_up").inc()


def _result(row: BatchRow) -> tuple[str, str]:
    match row.status:
        case BatchStatus.COMPLETED:
            return "success", "all_lines_failed" if row.failed and not row.completed else "none"
        case BatchStatus.EXPIRED if any(error.code == LineCode.BUDGET_EXCEEDED for error in row.errors):
            return "expired", "budget_exceeded"
        case BatchStatus.EXPIRED:
            ingested_in_time = row.in_progress_at is not None and row.in_progress_at < row.order.deadline
            return "expired", "expired_execution" if ingested_in_time else "expired_dequeue"
        case BatchStatus.CANCELLED:
            return "cancelled", "none"
        case _:
            return "failed", "system_error"


def _phase(row: BatchRow) -> str:
    if row.finalizing_at is not None:
        return "finalizing"
    return "in_progress" if row.in_progress_at is not None else "queued"
