"""The database row of a batch's output or error file, and how long the file is kept.

`finalization/` writes the files.
"""

from datetime import datetime, timedelta
from typing import Literal

from batchwright.contracts.temporal_payloads.batch import BatchOrder
from batchwright.contracts.terms import BatchStatus
from batchwright.database.records import FileRow
from batchwright.rules.calls.call_lines import CALLS_PURPOSE
from batchwright.rules.ids import derived_file_id
from batchwright.settings import Settings
from batchwright.storage.base import ObjectInfo

OUTPUT_KINDS: tuple[Literal["output", "error"], ...] = ("output", "error")


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

    If `order` contains a time, which the client chose for this batch, return this time. If not, return a
    setting: one setting is for completed batches, and another is for all other batches.
    """
    if order.output_expires_after_seconds is not None:
        return timedelta(seconds=order.output_expires_after_seconds)
    if status is BatchStatus.COMPLETED:
        return timedelta(days=settings.completed_file_retention_days)
    return timedelta(days=settings.partial_file_retention_days)
