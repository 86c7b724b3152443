"""Logs the end of a batch, and exports the root span of its trace."""

import logging
from datetime import datetime

from batchwright.contracts.terms import BatchStatus
from batchwright.database.records import BatchRow
from batchwright.telemetry import tracing

_log = logging.getLogger(__name__)

_SPAN_ERRORS = 5


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
