"""Input of a rolling batch: its calls, written as a file of lines."""

from uuid import uuid4

from batchwright.contracts.calls import ANSWER_LIFETIME
from batchwright.contracts.temporal_payloads.batch import BatchOrder
from batchwright.database.database import Database
from batchwright.database.records import FileRow
from batchwright.rules import object_keys
from batchwright.rules.call_lines import CALLS_PURPOSE, call_line
from batchwright.storage.base import Storage


async def write_calls(database: Database, storage: Storage, order: BatchOrder, group: str) -> FileRow | None:
    """Write the calls of a rolling batch to its input file. Return the row of the file.

    A call is a single request that runs as a line of a rolling batch. After this, the batch gets no further
    calls. Each attempt writes the lines to an object of its own, without calls that were cancelled meanwhile.
    Return None if all of them were cancelled.

    Args:
        group: the group of calls from which the batch takes its lines.

    Raises:
        DatabaseUnavailable, StorageUnavailable: the service does not respond.
    """
    await database.calls.collect(order.tenant, group, order.batch_id)
    key, size = object_keys.upload_key(order.tenant, order.input_file_id, uuid4().hex[:12]), 0
    async with storage.writer(key) as writer:
        async for call in database.calls.collected(order.tenant, order.batch_id):
            line = call_line(call.id, order.endpoint, call.request)
            size += len(line)
            await writer.write(line)
    if not size:
        await storage.delete(key)
        return None
    row = FileRow(
        id=order.input_file_id,
        tenant=order.tenant,
        purpose=CALLS_PURPOSE,
        filename=f"{order.batch_id}_input.jsonl",
        bytes=size,
        created_at=order.created_at,
        expires_at=order.created_at + ANSWER_LIFETIME,  # it stays as long as its batch is live
        storage_key=key,
    )
    await database.files.insert(row)
    return row
