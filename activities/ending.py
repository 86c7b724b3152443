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
from batchwright.telemetry.metrics import Metrics

_log = logging.getLogger(__name__)

_RESULTS: dict[BatchStatus, tuple[str, str]] = {
    BatchStatus.COMPLETED: ("success", "none"),
    BatchStatus.FAILED: ("failed", "system_error"),
    BatchStatus.EXPIRED: ("expired", "expired_execution"),
    BatchStatus.CANCELLED: ("cancelled", "none"),
}


async def clean(storage: Storage, files: FilesTable, order: BatchOrder) -> None:
    """Deletes what the ended batch no longer needs; retention finds what a broken storage keeps."""
    try:
        await sweep(storage, files, order)
        await storage.delete_prefix(keys.batch_root(order.tenant, order.batch_id) + "/")
    except StorageError as error:
        _log.warning("scratch kept", extra={"batch_id": order.batch_id, "error": str(error)})


def count_end(metrics: Metrics, row: BatchRow, at: datetime) -> None:
    result, reason = _RESULTS[row.status]
    metrics.jobs_processed.labels(result, reason).inc()
    metrics.e2e_seconds.labels(row.status.value).observe((at - row.order.created_at).total_seconds())
