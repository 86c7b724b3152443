"""Restore the outcome of an ended batch from the result of its workflow run and its files in storage."""

from datetime import datetime, timedelta
from typing import Literal

from batchwright.activities.completion import file_lifetime, output_file_row
from batchwright.contracts.temporal_payloads.batch import BatchOrder, BatchResult
from batchwright.database.records import BatchOutcome, FileRow
from batchwright.rules.ids import derived_file_id
from batchwright.rules.stored_objects import object_keys
from batchwright.settings import Settings
from batchwright.storage.base import Storage


async def restored_outcome(
    order: BatchOrder, result: BatchResult, at: datetime, storage: Storage, settings: Settings
) -> BatchOutcome | None:
    """Build the outcome of a batch (its final counts and files) from the result of its workflow run.

    The consistency check writes this outcome to the batch's row. Return None if storage does not have the
    output file or the error file, although the batch has results for this file.

    Args:
        at: when the run ended; used as the creation time of the files.
    """
    kept = file_lifetime(order, result.status, settings)
    output = await _file(order, "output", storage, at, kept) if result.completed else None
    error = await _file(order, "error", storage, at, kept) if result.failed else None
    if (result.completed and output is None) or (result.failed and error is None):
        return None
    return BatchOutcome(
        status=result.status,
        completed=result.completed,
        failed=result.failed,
        usage=result.usage,
        output=output,
        error=error,
    )


async def _file(
    order: BatchOrder, kind: Literal["output", "error"], storage: Storage, at: datetime, kept: timedelta
) -> FileRow | None:
    """Build the database row of the batch's output or error file from the stored object.

    Return None if storage has no such object.

    Args:
        at: creation time of the file.
        kept: how long the file is kept.
    """
    id = derived_file_id(order.batch_id, kind)
    async for info in storage.list(object_keys.output_key(order.tenant, id, "")):
        return output_file_row(order, kind, info, at, kept)
    return None
