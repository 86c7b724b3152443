"""What is deleted because its time is over: files, uploads, batches' scratch, old rows and keys.

Objects go before the rows that lead to them. A crash between the two leaves a row that nobody is shown any
more and that the next turn finds; the other way round only a listing of the storage would find the object.
"""

from functools import partial

from activities.retain.turn import PAGE, Turn, in_pages
from batchwright.contracts.retention import Place
from batchwright.database.retention_base import Ended
from batchwright.database.rows import FileRow
from batchwright.database.upload_rows import UploadRow
from batchwright.rules import keys
from batchwright.rules.ids import derived_file_id
from batchwright.rules.retention import OUTPUTS

_KEYS_AT_ONCE = 5_000


async def files(turn: Turn, place: Place) -> Place | None:
    table, before = turn.database.retention, turn.horizons.files

    async def delete(row: FileRow) -> None:
        async with turn.alone(row.id):
            if turn.dry_run:
                turn.deleted(1, row.bytes)
                return
            await turn.storage.delete(row.storage_key)
            if await table.remove_file(row):
                turn.deleted(1, row.bytes)

    return await in_pages(
        turn,
        place,
        lambda after: table.expired_files(before, after, PAGE),
        delete,
        lambda row: Place(at=row.expires_at, tenant=row.tenant, id=row.id),
    )


async def uploads(turn: Turn, place: Place) -> Place | None:
    table, before = turn.database.uploads, turn.horizons.uploads

    async def clear(row: UploadRow) -> None:
        async with turn.alone(row.id):
            await turn.delete_below(keys.parts_root(row.tenant, row.id))
            if not turn.dry_run:
                await table.swept(row, turn.now)

    return await in_pages(
        turn,
        place,
        lambda after: table.unswept(before, PAGE, after=after),
        clear,
        lambda row: Place(at=row.expires_at, tenant=row.tenant, id=row.id),
    )


async def batches(turn: Turn, place: Place) -> Place | None:
    """Their plans, shards and segments, and the files of attempts that did not win."""
    table, before = turn.database.retention, turn.horizons.batches

    async def clear(batch: Ended) -> None:
        async with turn.alone(batch.id):
            await turn.delete_below(keys.batch_root(batch.tenant, batch.id) + "/")
            await _delete_lost_attempts(turn, batch)
            if not turn.dry_run:
                await table.batch_swept(batch, turn.now)

    return await in_pages(
        turn, place, lambda after: table.ended_batches(before, after, PAGE), clear, _place_of
    )


async def _delete_lost_attempts(turn: Turn, batch: Ended) -> None:
    ids = [derived_file_id(batch.id, kind) for kind in OUTPUTS]
    own = await turn.database.retention.keys_of(batch.tenant, ids)
    for id in ids:
        async for found in turn.storage.list(keys.output_key(batch.tenant, id, "")):
            if found.key != own.get(id):
                await turn.delete_object(found.key, found.size)


async def metadata(turn: Turn, place: Place) -> Place | None:
    """Batches first, then uploads; a place of an upload is told by its id."""
    table, before = turn.database.retention, turn.horizons.metadata

    async def forget_batch(row: Ended) -> None:
        if turn.dry_run or await table.remove_batch(row):
            turn.deleted()

    async def forget_upload(row: Ended) -> None:
        if turn.dry_run or await table.remove_upload(row):
            turn.deleted()

    if not place.id.startswith("upload"):
        batches = partial(table.old_batches, before, limit=PAGE)
        reached = await in_pages(turn, place, lambda after: batches(after=after), forget_batch, _place_of)
        if reached is not None:
            return reached
        place = Place()
    old = partial(table.old_uploads, before, limit=PAGE)
    return await in_pages(turn, place, lambda after: old(after=after), forget_upload, _place_of)


async def idempotency_keys(turn: Turn, place: Place) -> Place | None:
    table, before = turn.database.retention, turn.horizons.keys
    if turn.dry_run:
        turn.deleted(await table.count_keys(before))
        return None
    while gone := await table.remove_keys(before, _KEYS_AT_ONCE):
        turn.deleted(gone)
        if turn.is_over:
            return place
    return None


def _place_of(row: Ended) -> Place:
    return Place(at=row.ended_at, tenant=row.tenant, id=row.id)
