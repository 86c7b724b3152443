"""What retention looks for in the tables, and takes out of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from batchwright.contracts.retention import Kind, Place
from batchwright.database.batch_rows import batch_row
from batchwright.database.connection import Connections
from batchwright.database.driver import Row
from batchwright.database.retention_base import Ended, Mark, RetentionTable
from batchwright.database.rows import BatchRow, FileRow
from batchwright.database.sql import queries

_FIRST = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True)
class RetentionQueries:
    expired_files: str
    remove_file: str
    ended_batches: str
    batch_swept: str
    clear_progress: str
    old_batches: str
    remove_batch: str
    old_uploads: str
    remove_upload: str
    count_keys: str
    remove_keys: str
    tenants: str
    keys_of: str
    open_uploads: str
    live_batches: str
    miscounted: str
    settled_files: str
    note_success: str
    successes: str
    mark: str
    note_mark: str


class Retention(RetentionTable):
    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._sql = queries(RetentionQueries, "retention")

    async def expired_files(self, before: datetime, after: Place, limit: int) -> list[FileRow]:
        return [_file_row(row) for row in await self._page(self._sql.expired_files, before, after, limit)]

    async def remove_file(self, row: FileRow) -> bool:
        return await self._found(self._sql.remove_file, row.tenant, row.id, row.storage_key)

    async def ended_batches(self, before: datetime, after: Place, limit: int) -> list[Ended]:
        return [_ended(row) for row in await self._page(self._sql.ended_batches, before, after, limit)]

    async def batch_swept(self, batch: Ended, at: datetime) -> bool:
        async with self._connections.transaction() as session:
            found = await session.fetchrow(self._sql.batch_swept, batch.tenant, batch.id, at)
            await session.execute(self._sql.clear_progress, batch.tenant, batch.id)
        return found is not None

    async def old_batches(self, before: datetime, after: Place, limit: int) -> list[Ended]:
        return [_ended(row) for row in await self._page(self._sql.old_batches, before, after, limit)]

    async def remove_batch(self, batch: Ended) -> bool:
        return await self._found(self._sql.remove_batch, batch.tenant, batch.id)

    async def old_uploads(self, before: datetime, after: Place, limit: int) -> list[Ended]:
        return [_ended(row) for row in await self._page(self._sql.old_uploads, before, after, limit)]

    async def remove_upload(self, upload: Ended) -> bool:
        return await self._found(self._sql.remove_upload, upload.tenant, upload.id)

    async def count_keys(self, before: datetime) -> int:
        return await self._count(self._sql.count_keys, before)

    async def remove_keys(self, before: datetime, limit: int) -> int:
        return await self._count(self._sql.remove_keys, before, limit)

    async def tenants(self, after: str, limit: int) -> list[str]:
        return [row["tenant"] for row in await self._connections.fetch(self._sql.tenants, after, limit)]

    async def keys_of(self, tenant: str, ids: Sequence[str]) -> dict[str, str]:
        rows = await self._connections.fetch(self._sql.keys_of, tenant, list(ids))
        return {row["id"]: row["storage_key"] for row in rows}

    async def open_uploads(self, tenant: str, ids: Sequence[str]) -> frozenset[str]:
        rows = await self._connections.fetch(self._sql.open_uploads, tenant, list(ids))
        return frozenset(row["id"] for row in rows)

    async def live_batches(self, tenant: str) -> frozenset[str]:
        rows = await self._connections.fetch(self._sql.live_batches, tenant)
        return frozenset(row["id"] for row in rows)

    async def miscounted(self) -> list[BatchRow]:
        return [batch_row(row) for row in await self._connections.fetch(self._sql.miscounted)]

    async def settled_files(
        self, tenant: str, after: str, before: datetime, now: datetime, limit: int
    ) -> list[FileRow]:
        rows = await self._connections.fetch(self._sql.settled_files, tenant, after, before, now, limit)
        return [_file_row(row) for row in rows]

    async def note_success(self, kind: Kind, at: datetime) -> None:
        await self._connections.execute(self._sql.note_success, kind, at)

    async def successes(self) -> dict[str, datetime]:
        rows = await self._connections.fetch(self._sql.successes)
        return {row["kind"]: row["succeeded_at"] for row in rows}

    async def mark(self) -> Mark:
        row = await self._connections.fetchrow(self._sql.mark)
        assert row is not None  # the migration inserts it, and nothing deletes it
        return Mark(row["id"], row["marked_at"])

    async def note_mark(self, at: datetime) -> None:
        await self._connections.execute(self._sql.note_mark, at)

    async def _page(self, sql: str, before: datetime, after: Place, limit: int) -> list[Row]:
        place = (after.at or _FIRST, after.tenant, after.id)
        return await self._connections.fetch(sql, before, *place, limit)

    async def _found(self, sql: str, *args: object) -> bool:
        return await self._connections.fetchrow(sql, *args) is not None

    async def _count(self, sql: str, *args: object) -> int:
        row = await self._connections.fetchrow(sql, *args)
        return 0 if row is None else row["count"]


def _file_row(record: Row) -> FileRow:
    return FileRow.model_validate(dict(record.items()))


def _ended(record: Row) -> Ended:
    return Ended(record["tenant"], record["id"], record["ended_at"])
