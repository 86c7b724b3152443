"""The end of a batch, put together again from its run's result and the objects of its files."""

from datetime import datetime
from typing import Literal

from activities.finalize.files import lifetime
from batchwright.contracts.batch import BatchOrder, BatchResult
from batchwright.database.rows import FileRow, Outcome
from batchwright.rules import keys
from batchwright.rules.ids import derived_file_id
from batchwright.settings import Settings
from batchwright.storage.base import Storage


async def restored(
    order: BatchOrder, result: BatchResult, at: datetime, storage: Storage, settings: Settings
) -> Outcome | None:
    """None where lines have results, but the file they are in is not there."""
    until = at + lifetime(order, result.status, settings)
    output = await _file(order, "output", storage) if result.completed else None
    error = await _file(order, "error", storage) if result.failed else None
    if (result.completed and output is None) or (result.failed and error is None):
        return None
    return Outcome(
        status=result.status,
        completed=result.completed,
        failed=result.failed,
        usage=result.usage,
        output=output and output.model_copy(update={"created_at": at, "expires_at": until}),
        error=error and error.model_copy(update={"created_at": at, "expires_at": until}),
    )


async def _file(order: BatchOrder, kind: Literal["output", "error"], storage: Storage) -> FileRow | None:
    """The attempts that did not win have deleted theirs, so that there is one."""
    id = derived_file_id(order.batch_id, kind)
    async for info in storage.list(keys.output_key(order.tenant, id, "")):
        return FileRow(
            id=id,
            tenant=order.tenant,
            purpose="batch_output",
            filename=f"{order.batch_id}_{kind}.jsonl",
            bytes=info.size,
            created_at=order.created_at,
            storage_key=info.key,
        )
    return None
