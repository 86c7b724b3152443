"""Work at the end of every batch: make the database rows of its files, delete its intermediate objects,
update metrics, log and trace.

`finalization/` writes the files.
"""

import logging
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Literal

from batchwright.contracts.errors import LineCode
from batchwright.contracts.temporal_payloads.batch import BatchOrder
from batchwright.contracts.terms import BatchStatus
from batchwright.database.records import BatchRow, FileRow
from batchwright.database.tables.files import FilesTable
from batchwright.rules.calls.call_lines import CALLS_PURPOSE
from batchwright.rules.ids import derived_file_id
from batchwright.rules.stored_objects import object_keys
from batchwright.settings import Settings
from batchwright.storage.base import ObjectInfo, Storage, StorageError
from batchwright.telemetry import tracing
from batchwright.telemetry.labels import OTHER
from batchwright.telemetry.metrics import Metrics

_log = logging.getLogger(__name__)

OUTPUT_KINDS: tuple[Literal["output", "error"], ...] = ("output", "error")
_SPAN_ERRORS = 5
_SIZE_BUCKETS = ((100, "100"), (1_000, "1000"), (10_000, "10000"), (50_000, "50000"))


async def delete_scratch(
    storage: Storage, files: FilesTable, order: BatchOrder, *, keep_results: bool
) -> None:
    """Delete the objects that an ended batch no longer needs: intermediate objects and unused output files.

    A storage error is only logged, because retention (the regular deletion of old data) deletes the objects
    later.

    Args:
        keep_results: True to keep the intermediate objects, so that another batch can resume this batch.
    """
    try:
        await _delete_superseded(storage, files, order)
        if keep_results:
            return
        await storage.delete_prefix(object_keys.batch_root(order.tenant, order.batch_id) + "/")
    except StorageError as error:
        _log.warning("scratch objects not deleted", extra={"batch_id": order.batch_id, "error": str(error)})


async def _delete_superseded(storage: Storage, files: FilesTable, order: BatchOrder) -> None:
    """Delete the stored output and error files that no database row of the batch refers to.

    Each attempt to finalize the batch writes its own files. Call this only after the batch has ended. Before
    that, it is not known which attempt's files are final.
    """
    for kind in OUTPUT_KINDS:
        id = derived_file_id(order.batch_id, kind)
        row = await files.get(order.tenant, id)
        stale = [
            info.key
            async for info in storage.list(object_keys.output_key(order.tenant, id, ""))
            if row is None or info.key != row.storage_key
        ]
        for key in stale:
            await storage.delete(key)


def output_file_row(
    order: BatchOrder, kind: Literal["output", "error"], info: ObjectInfo, at: datetime, kept: timedelta
) -> FileRow:
    """Build the database row of the batch's output or error file.

    Args:
        kind: which of the two files.
        info: storage key and size in bytes of the stored object.
        at: creation time of the file.
        kept: how long after `at` the file is kept (`file_lifetime`).
    """
    return FileRow(
        id=derived_file_id(order.batch_id, kind),
        tenant=order.tenant,
        purpose="batch_output" if order.policy.rolling is None else CALLS_PURPOSE,
        filename=f"{order.batch_id}_{kind}.jsonl",
        bytes=info.size,
        created_at=at,
        expires_at=at + kept,
        storage_key=info.key,
    )


def file_lifetime(order: BatchOrder, status: BatchStatus, settings: Settings) -> timedelta:
    """Return how long the files of an ended batch are kept.

    If the client has set this time when it created the batch, `order` contains it. If not, the time depends
    on the status with which the batch ended, and is a setting.
    """
    if order.output_expires_after_seconds is not None:
        return timedelta(seconds=order.output_expires_after_seconds)
    if status is BatchStatus.COMPLETED:
        return timedelta(days=settings.completed_file_retention_days)
    return timedelta(days=settings.partial_file_retention_days)


def log_completion(row: BatchRow, at: datetime) -> None:
    """Log that the batch ended at the time `at`.

    Only the process that ended the batch may call this, so that the end is logged once.
    """
    reason = row.errors[0].message if row.errors else ""
    data = {
        "status": row.status.value,
        "total": row.total,
        "completed": row.completed,
        "failed": row.failed,
        "seconds": (at - row.order.starts_at).total_seconds(),
        **({"reason": reason} if reason else {}),
        **({"files_pending": True} if row.files_pending else {}),
    }
    _log.log(logging.WARNING if row.status is BatchStatus.FAILED else logging.INFO, "batch ended", extra=data)


def record_span(row: BatchRow) -> None:
    """Export the root span of the batch's trace, if tracing is on.

    Every attempt of the batch's last activity calls this, because an earlier attempt may have ended the batch
    and crashed before the export.
    """
    spans = tracing.spans()
    if spans is None:
        return
    files = {"output_file_id": row.output_file_id, "error_file_id": row.error_file_id}
    failed = row.status is BatchStatus.FAILED
    spans.record_batch(
        "; ".join(error.message for error in row.errors[:_SPAN_ERRORS]) or "failed" if failed else "",
        file_id=row.order.input_file_id,
        status=row.status.value,
        total=row.total,
        completed=row.completed,
        failed=row.failed,
        **{name: file_id for name, file_id in files.items() if file_id is not None},
    )


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
