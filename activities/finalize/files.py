"""The output and error file of a batch: objects in storage, and the rows that name them."""

import asyncio
import uuid
from array import array
from datetime import datetime, timedelta
from typing import Literal

from activities.finalize.settled import Choice, Settled
from batchwright.contracts.batch import BatchOrder
from batchwright.contracts.openai import BatchStatus
from batchwright.database.base import FilesTable
from batchwright.database.rows import FileRow
from batchwright.rules import keys
from batchwright.rules.ids import derived_file_id
from batchwright.settings import Settings
from batchwright.storage.base import Storage

KINDS: tuple[Literal["output", "error"], ...] = ("output", "error")


class Files:
    """The files of one attempt: ids as on every attempt, keys of its own."""

    def __init__(self, storage: Storage, settings: Settings, order: BatchOrder, status: BatchStatus) -> None:
        self._storage = storage
        self._settings = settings
        self._order = order
        self._status = status
        self._nonce = uuid.uuid4().hex[:12]

    async def write(self, settled: Settled, choice: Choice, at: datetime) -> list[FileRow | None]:
        """The output and the error file; None where there is no line for it."""
        return [
            await self._write(kind, settled, entries, at) if entries else None
            for kind, entries in zip(KINDS, (choice.output, choice.error), strict=True)
        ]

    async def _write(self, kind: str, settled: Settled, entries: "array[int]", at: datetime) -> FileRow:
        order = self._order
        id = derived_file_id(order.batch_id, kind)
        key = keys.output_key(order.tenant, id, self._nonce)
        size = 0
        blocks = settled.blocks(entries)
        block = await asyncio.to_thread(next, blocks, None)
        async with self._storage.writer(key) as writer:
            while block:
                size += len(block)
                following, _ = await asyncio.gather(
                    asyncio.to_thread(next, blocks, None), writer.write(block)
                )
                block = following
        return FileRow(
            id=id,
            tenant=order.tenant,
            purpose="batch_output",
            filename=f"{order.batch_id}_{kind}.jsonl",
            bytes=size,
            created_at=at,
            expires_at=at + lifetime(order, self._status, self._settings),
            storage_key=key,
        )


def lifetime(order: BatchOrder, status: BatchStatus, settings: Settings) -> timedelta:
    """Of the files of a batch that ends in `status` (R14)."""
    if order.output_expires_after_seconds is not None:
        return timedelta(seconds=order.output_expires_after_seconds)
    if status is BatchStatus.COMPLETED:
        return timedelta(days=settings.completed_file_retention_days)
    return timedelta(days=settings.partial_file_retention_days)


async def sweep(storage: Storage, files: FilesTable, order: BatchOrder) -> None:
    """Deletes what attempts wrote that did not win: every object of the batch's files but the rows' own.

    Only once the row has ended: until then any attempt may still win.
    """
    for kind in KINDS:
        id = derived_file_id(order.batch_id, kind)
        row = await files.get(order.tenant, id)
        stale = [
            info.key
            async for info in storage.list(keys.output_key(order.tenant, id, ""))
            if row is None or info.key != row.storage_key
        ]
        for key in stale:
            await storage.delete(key)
