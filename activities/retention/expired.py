"""Delete expired data.

The data are files, uploads, intermediate objects of batches, old rows, idempotency keys, single calls,
webhook deliveries and entries of the audit log.

An object is deleted before the row that names it. If the process crashes between these two steps, the next
activity still finds the row, and tries to delete the object again.
"""

from collections.abc import Awaitable, Callable
from datetime import datetime

from batchwright.activities.retention.sweep_turn import PAGE, RetentionTurn, sweep_pages
from batchwright.contracts.temporal_payloads.retention import SweepPosition
from batchwright.database.records import FileRow, UploadRow
from batchwright.database.tables.operations.retention import EndedItem
from batchwright.rules.ids import derived_file_id
from batchwright.rules.stored_objects import object_keys
from batchwright.rules.stored_objects.retention import OUTPUT_KINDS

_ROWS_AT_ONCE = 5_000


async def files(turn: RetentionTurn, position: SweepPosition) -> SweepPosition | None:
    table, before = turn.database.retention, turn.cutoffs.files

    async def delete(row: FileRow) -> None:
        async with turn.isolated(row.id):
            if turn.dry_run:
                turn.count_deleted(1, row.bytes)
                return
            await turn.storage.delete(row.storage_key)
            if await table.remove_file(row):
                turn.count_deleted(1, row.bytes)

    return await sweep_pages(
        turn,
        position,
        lambda after: table.expired_files(before, after, PAGE),
        delete,
        lambda row: SweepPosition(at=row.expires_at, tenant=row.tenant, id=row.id),
    )


async def uploads(turn: RetentionTurn, position: SweepPosition) -> SweepPosition | None:
    table, before = turn.database.uploads, turn.cutoffs.uploads

    async def clear(row: UploadRow) -> None:
        async with turn.isolated(row.id):
            await turn.delete_prefix(object_keys.parts_root(row.tenant, row.id))
            if not turn.dry_run:
                await table.record_sweep(row, turn.now)

    return await sweep_pages(
        turn,
        position,
        lambda after: table.unswept(before, PAGE, after=after),
        clear,
        lambda row: SweepPosition(at=row.expires_at, tenant=row.tenant, id=row.id),
    )


async def batches(turn: RetentionTurn, position: SweepPosition) -> SweepPosition | None:
    """Delete the intermediate objects of ended batches, and output files that no database row refers to.

    Return the position at which the next turn (activity) continues; None after the last batch.
    """
    table, before = turn.database.retention, turn.cutoffs.batches

    async def clear(batch: EndedItem) -> None:
        async with turn.isolated(batch.id):
            await turn.delete_prefix(object_keys.batch_root(batch.tenant, batch.id) + "/")
            await _delete_lost_attempts(turn, batch)
            if not turn.dry_run:
                await table.record_sweep(batch, turn.now)

    return await sweep_pages(
        turn, position, lambda after: table.ended_batches(before, after, PAGE), clear, _position_of
    )


async def _delete_lost_attempts(turn: RetentionTurn, batch: EndedItem) -> None:
    ids = [derived_file_id(batch.id, kind) for kind in OUTPUT_KINDS]
    own = await turn.database.retention.storage_keys(batch.tenant, ids)
    for id in ids:
        async for found in turn.storage.list(object_keys.output_key(batch.tenant, id, "")):
            if found.key != own.get(id):
                await turn.delete_object(found.key, found.size)


async def metadata(turn: RetentionTurn, position: SweepPosition) -> SweepPosition | None:
    """Delete old database rows of ended batches, then of uploads, then the records of deleted batches.

    Return the position at which the next turn (activity) continues; None after the last row. If `position`
    has the id of an upload, an earlier turn has already deleted the rows of all old batches.
    """
    table, before = turn.database.retention, turn.cutoffs.metadata

    async def delete_batch(row: EndedItem) -> None:
        if turn.dry_run or await table.remove_batch(row):
            turn.count_deleted()

    async def delete_upload(row: EndedItem) -> None:
        if turn.dry_run or await table.remove_upload(row):
            turn.count_deleted()

    if not position.id.startswith("upload"):
        reached = await sweep_pages(
            turn, position, lambda after: table.old_batches(before, after, PAGE), delete_batch, _position_of
        )
        if reached is not None:
            return reached
        position = SweepPosition()
    reached = await sweep_pages(
        turn, position, lambda after: table.old_uploads(before, after, PAGE), delete_upload, _position_of
    )
    if reached is None and not turn.dry_run:
        await turn.database.batch_deletions.forget(before)
    return reached


async def idempotency_keys(turn: RetentionTurn, position: SweepPosition) -> SweepPosition | None:
    table, before = turn.database.retention, turn.cutoffs.keys
    return await _remove_rows(
        turn, position, before, table.count_idempotency_keys, table.remove_idempotency_keys
    )


async def calls(turn: RetentionTurn, position: SweepPosition) -> SweepPosition | None:
    table, before = turn.database.calls, turn.cutoffs.calls
    return await _remove_rows(turn, position, before, table.count_old, table.remove_old)


async def webhooks(turn: RetentionTurn, position: SweepPosition) -> SweepPosition | None:
    table, before = turn.database.webhook_deliveries, turn.cutoffs.webhooks
    return await _remove_rows(turn, position, before, table.count_old, table.remove_old)


async def audit_log(turn: RetentionTurn, position: SweepPosition) -> SweepPosition | None:
    table, before = turn.database.audit_log, turn.cutoffs.audit_log
    return await _remove_rows(turn, position, before, table.count_old, table.remove_old)


async def _remove_rows(
    turn: RetentionTurn,
    position: SweepPosition,
    before: datetime,
    count: Callable[[datetime], Awaitable[int]],
    remove: Callable[[datetime, int], Awaitable[int]],
) -> SweepPosition | None:
    """Remove old database rows that refer to no stored objects, until none is left or the turn ends.

    Return `position` if rows are left for the next turn (activity); None if none is left.

    Args:
        before: rows that became old at this time or earlier are removed.
        count: returns how many rows would be removed, for a dry run.
        remove: removes old rows, given `before` and a maximum number of rows. It returns the number of
            removed rows.
    """
    if turn.dry_run:
        turn.count_deleted(await count(before))
        return None
    while gone := await remove(before, _ROWS_AT_ONCE):
        turn.count_deleted(gone)
        if turn.is_over:
            return position
    return None


def _position_of(row: EndedItem) -> SweepPosition:
    return SweepPosition(at=row.ended_at, tenant=row.tenant, id=row.id)
