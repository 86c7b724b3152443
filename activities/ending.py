"""What follows the end of a batch's row, with files or without: its scratch goes, it is counted."""

import logging
from datetime import datetime

from activities.finalize.files import sweep
from batchwright.contracts.batch import BatchOrder
from batchwright.contracts.openai import BatchStatus
from batchwright.database.base import FilesTable
from batchwright.database.rows import BatchRow
from batchwright.rules import keys
from batchwright.storage.base import Storage, StorageError
from batchwright.telemetry import tracing
from batchwright.telemetry.metrics import Metrics

_log = logging.getLogger(__name__)

_TOLD_ERRORS = 5
_SIZES = ((100, "100"), (1_000, "1000"), (10_000, "10000"), (50_000, "50000"))


async def clean(
    storage: Storage, files: FilesTable, order: BatchOrder, *, keep_results: bool = False
) -> None:
    """Deletes what the ended batch no longer needs; retention finds what a broken storage keeps."""
    try:
        await sweep(storage, files, order)
        if keep_results:
            return
        await storage.delete_prefix(keys.batch_root(order.tenant, order.batch_id) + "/")
    except StorageError as error:
        _log.warning("scratch kept", extra={"batch_id": order.batch_id, "error": str(error)})


def tell_end(row: BatchRow, at: datetime) -> None:
    """Of the call that ended the row: says so."""
    reason = row.errors[0].message if row.errors else ""
    data = {
        "status": row.status.value,
        "total": row.total,
        "completed": row.completed,
        "failed": row.failed,
        "seconds": (at - row.order.created_at).total_seconds(),
        **({"reason": reason} if reason else {}),
    }
    _log.log(logging.WARNING if row.status is BatchStatus.FAILED else logging.INFO, "batch ended", extra=data)


def trace_end(row: BatchRow) -> None:
    """The batch's root span, also where an earlier attempt ended the row without getting here (S0-50)."""
    spans = tracing.spans()
    if spans is None:
        return
    files = {"output_file_id": row.output_file_id, "error_file_id": row.error_file_id}
    failed = row.status is BatchStatus.FAILED
    spans.batch_ended(
        "; ".join(error.message for error in row.errors[:_TOLD_ERRORS]) or "failed" if failed else "",
        file_id=row.order.input_file_id,
        status=row.status.value,
        total=row.total,
        completed=row.completed,
        failed=row.failed,
        **{name: file_id for name, file_id in files.items() if file_id is not None},
    )


def size_bucket(lines: int) -> str:
    """A bounded label: the least of the sizes that `lines` fit into."""
    return next((name for most, name in _SIZES if lines <= most), "more")


def count_end(metrics: Metrics, row: BatchRow, at: datetime) -> None:
    """Of the call that ended the row."""
    metrics.jobs_processed.labels(*_result(row)).inc()
    metrics.e2e_seconds.labels(row.status.value).observe((at - row.order.created_at).total_seconds())
    if row.in_progress_at is not None:
        seconds = (at - row.in_progress_at).total_seconds()
        metrics.processing_seconds.labels(size_bucket(row.total)).observe(seconds)
    if row.status is BatchStatus.CANCELLED:
        metrics.cancellations.labels(_phase(row)).inc()


def count_refused(metrics: Metrics, order: BatchOrder, at: datetime) -> None:
    """Of the call that found the input wrong: the client's doing, so no reason of ours."""
    metrics.jobs_processed.labels("failed", "none").inc()
    metrics.e2e_seconds.labels(BatchStatus.FAILED).observe((at - order.created_at).total_seconds())


def count_skipped(metrics: Metrics) -> None:
    """A step found that the row has ended: an earlier attempt's result was lost, only litter is left."""
    metrics.jobs_processed.labels("skipped", "not_runnable_state").inc()
    metrics.recoveries.labels("unknown", "cleaned_up").inc()


def _result(row: BatchRow) -> tuple[str, str]:
    match row.status:
        case BatchStatus.COMPLETED:
            return "success", "none"
        case BatchStatus.EXPIRED:
            return "expired", "expired_execution" if _has_run(row) else "expired_dequeue"
        case BatchStatus.CANCELLED:
            return "cancelled", "none"
        case _:
            return "failed", "system_error"


def _has_run(row: BatchRow) -> bool:
    """Whether its window was open when it had been ingested."""
    return row.in_progress_at is not None and row.in_progress_at < row.order.expires_at


def _phase(row: BatchRow) -> str:
    if row.finalizing_at is not None:
        return "finalizing"
    return "in_progress" if row.in_progress_at is not None else "queued"
