"""What crashes left: unfinished objects, objects without rows, rows without objects.

Rows and objects are compared only where the storage says that it belongs to this database: with the wrong
one of either, everything would look like litter.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Sequence

from activities.retain import mark
from activities.retain.turn import PAGE, Turn
from batchwright.contracts.retention import Place
from batchwright.database.rows import FileRow
from batchwright.rules import keys
from batchwright.rules.retention import WRITER, Area, Known, Written, owner_of
from batchwright.rules.retention import orphans as orphans_of
from batchwright.storage.base import DatedObject, ObjectMissing

logger = logging.getLogger(__name__)

_OBJECTS = 500
_STATS_AT_ONCE = 16


async def unfinished(turn: Turn, place: Place) -> Place | None:
    """Storages cannot tell beforehand how many there are."""
    if not turn.dry_run:
        turn.deleted(await turn.storage.sweep(WRITER))
    return None


async def orphans(turn: Turn, place: Place) -> Place | None:
    """Tenant by tenant of those in the database, and so nothing where it has none."""
    await _check(turn)
    async for tenant in _tenants(turn, place):
        live = await turn.database.retention.live_batches(tenant)
        after = place.id if tenant == place.tenant else ""
        async for page in _pages(turn.storage.inventory(keys.tenant_root(tenant), after)):
            await _delete_orphans(turn, tenant, live, page)
            if turn.is_over:
                return Place(tenant=tenant, id=page[-1].key)
        if turn.is_over:
            return _done(turn, tenant)
    return None


async def _delete_orphans(turn: Turn, tenant: str, live: frozenset[str], page: Sequence[DatedObject]) -> None:
    """The rows are read after the objects were listed: what is new has its row, or is too young."""
    table = turn.database.retention
    owners = {owner for found in page if (owner := owner_of(found.key))}
    file_ids = sorted({owner.id for owner in owners if owner.area is Area.FILES})
    upload_ids = sorted({owner.id for owner in owners if owner.area is Area.UPLOADS})
    known = Known(
        files=await table.keys_of(tenant, file_ids),
        open_uploads=await table.open_uploads(tenant, upload_ids),
        live_batches=live,
    )
    sizes = {found.key: found.size for found in page}
    written = [Written(found.key, found.written_at) for found in page]
    for key in orphans_of(written, known, turn.horizons.orphans):
        async with turn.alone(key):
            await turn.delete_object(key, sizes[key])
            logger.info("an object without a row", extra={"key": key, "dry_run": turn.dry_run})


async def lost(turn: Turn, place: Place) -> Place | None:
    """Without its object a file is an error at every download, and nothing brings it back."""
    await _check(turn)
    table, before = turn.database.retention, turn.horizons.orphans
    async for tenant in _tenants(turn, place):
        after = place.id if tenant == place.tenant else ""
        while rows := await table.settled_files(tenant, after, before, turn.now, PAGE):
            for first in range(0, len(rows), _STATS_AT_ONCE):
                await asyncio.gather(*(_look(turn, row) for row in rows[first : first + _STATS_AT_ONCE]))
            after = rows[-1].id
            if turn.is_over:
                return Place(tenant=tenant, id=after)
        if turn.is_over:
            return _done(turn, tenant)
    return None


async def _look(turn: Turn, row: FileRow) -> None:
    async with turn.alone(row.id):
        try:
            await turn.storage.stat(row.storage_key)
        except ObjectMissing:
            if turn.dry_run or await turn.database.retention.remove_file(row):
                turn.deleted()
                logger.warning("a file lost its object", extra={"file_id": row.id, "dry_run": turn.dry_run})


async def _check(turn: Turn) -> None:
    await mark.check(turn.database, turn.storage, turn.now, dry_run=turn.dry_run)


def _done(turn: Turn, tenant: str) -> Place:
    """The next turn begins with the next tenant."""
    return Place(at=turn.now, tenant=tenant)


async def _tenants(turn: Turn, place: Place) -> AsyncGenerator[str]:
    """From `place` on: the tenant there again, unless it is done."""
    after = place.tenant
    if after and place.at is None:
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
