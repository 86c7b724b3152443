"""Delete what crashed processes left behind: unfinished objects, objects without rows, rows without objects.

Rows and objects are compared only if the storage contains the id of this database. With a wrong storage or
database, every object would seem to have no row.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Sequence

from batchwright.activities.retention.storage_mark import check_storage_mark
from batchwright.activities.retention.sweep_turn import PAGE, RetentionTurn
from batchwright.contracts.temporal_payloads.retention import SweepPosition
from batchwright.database.records import FileRow
from batchwright.rules.stored_objects import object_keys
from batchwright.rules.stored_objects.retention import (
    MAX_WRITE_TIME,
    KnownObjects,
    TenantFolder,
    WrittenObject,
    orphaned_keys,
    owner_of,
)
from batchwright.storage.base import DatedObject, ObjectMissing

logger = logging.getLogger(__name__)

_OBJECTS = 500
_STATS_AT_ONCE = 16


async def unfinished_objects(turn: RetentionTurn, position: SweepPosition) -> SweepPosition | None:
    """Delete incomplete objects in storage, whose writes began at least `MAX_WRITE_TIME` ago and never ended.

    Return None, because one call deletes all these objects, so no further activity is needed. A dry run does
    nothing, because the storage cannot count these objects without deleting them.
    """
    if not turn.dry_run:
        turn.count_deleted(await turn.storage.sweep(MAX_WRITE_TIME))
    return None


async def orphaned_objects(turn: RetentionTurn, position: SweepPosition) -> SweepPosition | None:
    """Delete objects without a row in the database, tenant by tenant.

    Return the position at which the next turn (activity) continues; None after the last tenant.
    """
    await _check_mark(turn)
    async for tenant in _tenants(turn, position):
        live = await turn.database.retention.live_batches(tenant)
        after = position.id if tenant == position.tenant else ""
        async for page in _pages(turn.storage.inventory(object_keys.tenant_root(tenant), after)):
            await _delete_orphans(turn, tenant, live, page)
            if turn.is_over:
                return SweepPosition(tenant=tenant, id=page[-1].key)
        if turn.is_over:
            return _tenant_done(turn, tenant)
    return None


async def _delete_orphans(
    turn: RetentionTurn, tenant: str, live: frozenset[str], page: Sequence[DatedObject]
) -> None:
    """Delete the objects in `page` that have no database row and were last changed at least one day ago.

    The exact limit is `turn.cutoffs.orphans`. Newer objects are not deleted, because an object is often
    stored before its row is inserted. The rows are read after the objects were listed, so that new rows are
    found, too.

    Args:
        live: ids of batches whose objects and output files are not deleted. These batches have not ended, or
            their results are kept for a resumption, or their output files are not written yet.
        page: some of the tenant's objects, as the storage has listed them.
    """
    table = turn.database.retention
    owners = {owner for found in page if (owner := owner_of(found.key))}
    file_ids = sorted({owner.id for owner in owners if owner.area is TenantFolder.FILES})
    upload_ids = sorted({owner.id for owner in owners if owner.area is TenantFolder.UPLOADS})
    known = KnownObjects(
        files=await table.storage_keys(tenant, file_ids),
        open_uploads=await table.open_uploads(tenant, upload_ids),
        live_batches=live,
    )
    sizes = {found.key: found.size for found in page}
    written = [WrittenObject(found.key, found.written_at) for found in page]
    for key in orphaned_keys(written, known, turn.cutoffs.orphans):
        async with turn.isolated(key):
            await turn.delete_object(key, sizes[key])
            logger.info("orphaned object deleted", extra={"key": key, "dry_run": turn.dry_run})


async def files_without_object(turn: RetentionTurn, position: SweepPosition) -> SweepPosition | None:
    """Delete the rows of files whose object is missing in storage, because such files cannot be downloaded.

    Return the position at which the next turn (activity) continues; None after the last tenant.
    """
    await _check_mark(turn)
    table, before = turn.database.retention, turn.cutoffs.orphans
    async for tenant in _tenants(turn, position):
        after = position.id if tenant == position.tenant else ""
        while rows := await table.settled_files(tenant, after, before, turn.now, PAGE):
            for first in range(0, len(rows), _STATS_AT_ONCE):
                await asyncio.gather(
                    *(_check_object(turn, row) for row in rows[first : first + _STATS_AT_ONCE])
                )
            after = rows[-1].id
            if turn.is_over:
                return SweepPosition(tenant=tenant, id=after)
        if turn.is_over:
            return _tenant_done(turn, tenant)
    return None


async def _check_object(turn: RetentionTurn, row: FileRow) -> None:
    async with turn.isolated(row.id):
        try:
            await turn.storage.stat(row.storage_key)
        except ObjectMissing:
            if turn.dry_run or await turn.database.retention.remove_file(row):
                turn.count_deleted()
                data = {"file_id": row.id, "dry_run": turn.dry_run}
                logger.warning("file without an object deleted", extra=data)


async def _check_mark(turn: RetentionTurn) -> None:
    await check_storage_mark(turn.database, turn.storage, turn.now, dry_run=turn.dry_run)


def _tenant_done(turn: RetentionTurn, tenant: str) -> SweepPosition:
    """Return the position after all data of this tenant. The next activity continues with the next tenant."""
    return SweepPosition(at=turn.now, tenant=tenant)


async def _tenants(turn: RetentionTurn, position: SweepPosition) -> AsyncGenerator[str]:
    """Yield the names of the tenants whose data this sweep has not processed yet.

    `position` is where the last turn (activity) stopped. If it stopped in the middle of a tenant's data, the
    first name is that of this tenant. If it stopped after all data of a tenant (see `_tenant_done`), the
    first name is that of the next tenant.
    """
    after = position.tenant
    if after and position.at is None:
        yield after
    while names := await turn.database.retention.tenants(after, PAGE):
        for name in names:
            yield name
        after = names[-1]


async def _pages(found: AsyncIterator[DatedObject]) -> AsyncGenerator[list[DatedObject]]:
    page: list[DatedObject] = []
    async for one in found:
        page.append(one)
        if len(page) == _OBJECTS:
            yield page
            page = []
    if page:
        yield page
