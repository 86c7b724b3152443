"""Finds what the batch that is resumed has settled: in its files, or in the segments it kept."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import ExitStack, asynccontextmanager, closing

from activities.finalize.collect import Collector
from activities.finalize.settled import Settled
from activities.finalize.spool import Spool as Collected
from activities.ingest.adoption import Adoption, ResultFile
from activities.ingest.spool import Spool
from batchwright.contracts.batch import BatchOrder, Chance
from batchwright.database.base import DatabaseLike
from batchwright.database.rows import BatchRow
from batchwright.rules import keys
from batchwright.settings import Settings
from batchwright.storage.base import ObjectMissing, Storage


class OriginGone(Exception):
    """The batch that is resumed, or its results, are no longer there; the message is for the client."""


@asynccontextmanager
async def adoption_of(
    order: BatchOrder, database: DatabaseLike, storage: Storage, settings: Settings
) -> AsyncGenerator[Adoption | None]:
    """None for a batch that resumes no other. Needs room on local disk for the other's results, twice.

    Raises:
        OriginGone.
        StorageUnavailable, DatabaseUnavailable; SegmentDamaged of segments that were kept.
    """
    origin = order.origin
    if origin is None or origin.chance is not Chance.RESUME:
        yield None
        return
    row = await database.batches.get(order.tenant, origin.batch_id)
    if row is None:
        raise OriginGone(f"The batch '{origin.batch_id}' that was to be resumed is no longer there.")
    with ExitStack() as stack:
        spools = [stack.enter_context(Spool(settings.spool_dir)) for _ in range(3)]
        output, error, segments = spools
        files = [stack.enter_context(closing(ResultFile(output, success=True)))]
        files.append(stack.enter_context(closing(ResultFile(error, success=False))))
        complete = row.output_file_id is not None or row.error_file_id is not None
        if complete:
            await _copy_files(row, database, storage, (output, error))
        else:
            await _copy_segments(row, storage, settings, (output, error))
        adoption = Adoption(order, files, segments, complete=complete)
        await segments.off_loop(adoption.begin)
        yield adoption


async def _copy_files(
    row: BatchRow, database: DatabaseLike, storage: Storage, spools: tuple[Spool, Spool]
) -> None:
    for spool, file_id in zip(spools, (row.output_file_id, row.error_file_id), strict=True):
        if file_id is None:
            continue
        file = await database.files.get(row.order.tenant, file_id)
        try:
            if file is None:
                raise ObjectMissing(file_id)
            spool.require(2 * file.bytes)
            async for piece in storage.read(file.storage_key):
                await spool.off_loop(spool.write, piece)
        except ObjectMissing:
            message = f"The file '{file_id}' with results of '{row.order.batch_id}' is no longer there."
            raise OriginGone(message) from None


async def _copy_segments(
    row: BatchRow, storage: Storage, settings: Settings, spools: tuple[Spool, Spool]
) -> None:
    """Of a batch that never got its files: whatever of its segments is there, in the input's order."""
    tenant, batch_id = row.order.tenant, row.order.batch_id
    with Collected(settings.spool_dir) as collected, Settled(collected) as settled:
        collector = Collector(storage, collected, settled)
        async for info in storage.list(keys.ingest_root(tenant, batch_id)):
            if "/adopted/" in info.key:
                await collector.take(info.key)
        await collector.take_all(keys.results_root(tenant, batch_id))
        choice = await asyncio.to_thread(settled.choose)
        for spool, entries in zip(spools, (choice.output, choice.error), strict=True):
            blocks = settled.blocks(entries)
            while block := await spool.off_loop(next, blocks, None):
                await spool.off_loop(spool.write, memoryview(block))
