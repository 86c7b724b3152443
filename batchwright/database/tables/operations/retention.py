"""Queries that find and delete expired data of all tenants."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple, Protocol

from batchwright.contracts.temporal_payloads.retention import RetentionKind, SweepPosition
from batchwright.database.driver import Row
from batchwright.database.pool import ConnectionPool
from batchwright.database.records import BatchRow, FileRow, parse_row
from batchwright.database.sql import queries
from batchwright.database.tables.batches.batch_records import parse_batch


class EndedItem(NamedTuple):
    """A batch and the time when it ended, or an upload and the time when it expired."""

    tenant: str
    id: str
    ended_at: datetime


class StorageMark(NamedTuple):
    """The mark of a storage: an object in the storage with the id of the database that uses this storage.

    `id` is the id of this database. `marked_at` is the time when the mark was written; None if there is no
    mark yet.
    """

    id: str
    marked_at: datetime | None


class RetentionTable(Protocol):
    """Queries that find and delete expired data. Concurrent calls are safe.

    A list is read in pages. A page has at most `limit` items, and begins after the position `after`.

    `remove_batch` and `remove_upload` delete a row and return True. If there is no such row, or if objects of
    the batch or the upload are still in storage, they delete nothing and return False.
    """

    async def expired_files(self, before: datetime, after: SweepPosition, limit: int) -> list[FileRow]:
        """Return files that expired at the time `before` or earlier, sorted by time of expiry.

        A file that a schedule or a batch needs is left out. A batch needs its input file until two conditions
        are met: it ended at the time `before` or earlier, and its output files are written.
        """
        ...

    async def remove_file(self, row: FileRow) -> bool:
        """Delete the row of a file and return True.

        Change nothing and return False in these cases:

        - There is no row.
        - A batch or a schedule still needs the file as input.
        - The row was replaced and has another storage key than `row`.
        """
        ...

    async def ended_batches(self, before: datetime, after: SweepPosition, limit: int) -> list[EndedItem]:
        """Return batches whose intermediate objects can be deleted, sorted by the time when they ended.

        Intermediate objects are, for example, the stored results of a batch's slices (parts). Only batches
        that ended at the time `before` or earlier are returned. A batch is left out if its results are kept
        for a rerun, or if its output files may still be written.
        """
        ...

    async def record_sweep(self, batch: EndedItem, at: datetime) -> bool:
        """Record that a batch's intermediate objects in storage were deleted at `at`, and return True.

        Also delete the stored progress of the batch. Return False if the deletion was recorded before.
        """
        ...

    async def old_batches(self, before: datetime, after: SweepPosition, limit: int) -> list[EndedItem]:
        """Return batches whose row can be deleted, sorted by the time when they ended.

        The intermediate objects, output files and error files of these batches are already deleted. Each
        batch ended at the time `before` or earlier, or it collected single calls and ended at least two days
        ago.
        """
        ...

    async def remove_batch(self, batch: EndedItem) -> bool: ...

    async def old_uploads(self, before: datetime, after: SweepPosition, limit: int) -> list[EndedItem]:
        """Return uploads whose row can be deleted, sorted by time of expiry.

        They expired at the time `before` or earlier, and their objects in storage have been deleted.
        """
        ...

    async def remove_upload(self, upload: EndedItem) -> bool: ...

    async def count_idempotency_keys(self, before: datetime) -> int:
        """Return the number of idempotency keys that were created at the time `before` or earlier."""
        ...

    async def remove_idempotency_keys(self, before: datetime, limit: int) -> int:
        """Delete at most `limit` idempotency keys that were created at the time `before` or earlier.

        Return the number of deleted keys.
        """
        ...

    async def tenants(self, after: str, limit: int) -> list[str]:
        """Return names of tenants that have a file, a batch or an upload, sorted by name.

        `after` is the last name of the previous page; empty for the first page.
        """
        ...

    async def storage_keys(self, tenant: str, ids: Sequence[str]) -> dict[str, str]:
        """Return the keys under which files are stored in object storage, by file id. Expired files are
        included.
        """
        ...

    async def open_uploads(self, tenant: str, ids: Sequence[str]) -> frozenset[str]:
        """Return the ids of the uploads in `ids` whose parts may still be in storage."""
        ...

    # Returns the ids of batches whose objects must stay: live ones, and ended ones whose results are kept or
    # whose files are still to be written.
    async def live_batches(self, tenant: str) -> frozenset[str]: ...

    async def miscounted(self) -> list[BatchRow]:
        """Return at most 1,000 ended batches that have an output or error file and wrong counts.

        Counts are wrong if the completed and the failed lines do not add up to the total number of lines.
        """
        ...

    async def settled_files(
        self, tenant: str, after: str, before: datetime, now: datetime, limit: int
    ) -> list[FileRow]:
        """Return one page of a tenant's files that have not expired and are complete, sorted by id.

        The object of each of these files should be in storage.

        Args:
            after: the last file id of the previous page; empty for the first page.
            before: return only files created at this time or earlier. Later files may be incomplete.
            now: the current time. Files that have already expired are left out.
            limit: maximum number of files in the page.
        """
        ...

    async def record_success(self, kind: RetentionKind, at: datetime) -> None: ...

    async def successes(self) -> dict[str, datetime]:
        """Return when old data was last deleted successfully, for each kind of data.

        If data of a kind was never deleted successfully, the time for this kind is the creation time of the
        table.
        """
        ...

    async def mark(self) -> StorageMark: ...

    async def record_mark(self, at: datetime) -> None:
        """Record that the mark of the storage was written at the time `at`.

        The mark is an object in the storage with the id of the database that uses this storage. If a time is
        recorded already, nothing changes.
        """
        ...


_FIRST = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True)
class RetentionQueries:
    expired_files: str
    remove_file: str
    ended_batches: str
    record_sweep: str
    clear_progress: str
    old_batches: str
    remove_batch: str
    old_uploads: str
    remove_upload: str
    count_idempotency_keys: str
    remove_idempotency_keys: str
    tenants: str
    storage_keys: str
    open_uploads: str
    live_batches: str
    miscounted: str
    settled_files: str
    record_success: str
    successes: str
    mark: str
    record_mark: str


class PostgresRetention(RetentionTable):
    def __init__(self, connections: ConnectionPool) -> None:
        self._connections = connections
        self._sql = queries(RetentionQueries, "retention")

    async def expired_files(self, before: datetime, after: SweepPosition, limit: int) -> list[FileRow]:
        return [
            parse_row(FileRow, row) for row in await self._page(self._sql.expired_files, before, after, limit)
        ]

    async def remove_file(self, row: FileRow) -> bool:
        return await self._found(self._sql.remove_file, row.tenant, row.id, row.storage_key)

    async def ended_batches(self, before: datetime, after: SweepPosition, limit: int) -> list[EndedItem]:
        return [_ended(row) for row in await self._page(self._sql.ended_batches, before, after, limit)]

    async def record_sweep(self, batch: EndedItem, at: datetime) -> bool:
        async with self._connections.transaction() as session:
            found = await session.fetchrow(self._sql.record_sweep, batch.tenant, batch.id, at)
            await session.execute(self._sql.clear_progress, batch.tenant, batch.id)
        return found is not None

    async def old_batches(self, before: datetime, after: SweepPosition, limit: int) -> list[EndedItem]:
        return [_ended(row) for row in await self._page(self._sql.old_batches, before, after, limit)]

    async def remove_batch(self, batch: EndedItem) -> bool:
        return await self._found(self._sql.remove_batch, batch.tenant, batch.id)

    async def old_uploads(self, before: datetime, after: SweepPosition, limit: int) -> list[EndedItem]:
        return [_ended(row) for row in await self._page(self._sql.old_uploads, before, after, limit)]

    async def remove_upload(self, upload: EndedItem) -> bool:
        return await self._found(self._sql.remove_upload, upload.tenant, upload.id)

    async def count_idempotency_keys(self, before: datetime) -> int:
        return await self._count(self._sql.count_idempotency_keys, before)

    async def remove_idempotency_keys(self, before: datetime, limit: int) -> int:
        return await self._count(self._sql.remove_idempotency_keys, before, limit)

    async def tenants(self, after: str, limit: int) -> list[str]:
        return [row["tenant"] for row in await self._connections.fetch(self._sql.tenants, after, limit)]

    async def storage_keys(self, tenant: str, ids: Sequence[str]) -> dict[str, str]:
        rows = await self._connections.fetch(self._sql.storage_keys, tenant, list(ids))
        return {row["id"]: row["storage_key"] for row in rows}

    async def open_uploads(self, tenant: str, ids: Sequence[str]) -> frozenset[str]:
        rows = await self._connections.fetch(self._sql.open_uploads, tenant, list(ids))
        return frozenset(row["id"] for row in rows)

    async def live_batches(self, tenant: str) -> frozenset[str]:
        rows = await self._connections.fetch(self._sql.live_batches, tenant)
        return frozenset(row["id"] for row in rows)

    async def miscounted(self) -> list[BatchRow]:
        return [parse_batch(row) for row in await self._connections.fetch(self._sql.miscounted)]

    async def settled_files(
        self, tenant: str, after: str, before: datetime, now: datetime, limit: int
    ) -> list[FileRow]:
        rows = await self._connections.fetch(self._sql.settled_files, tenant, after, before, now, limit)
        return [parse_row(FileRow, row) for row in rows]

    async def record_success(self, kind: RetentionKind, at: datetime) -> None:
        await self._connections.execute(self._sql.record_success, kind, at)

    async def successes(self) -> dict[str, datetime]:
        rows = await self._connections.fetch(self._sql.successes)
        return {row["kind"]: row["succeeded_at"] for row in rows}

    async def mark(self) -> StorageMark:
        row = await self._connections.fetchrow(self._sql.mark)
        assert row is not None  # the migration inserts it, and nothing deletes it
        return StorageMark(row["id"], row["marked_at"])

    async def record_mark(self, at: datetime) -> None:
        await self._connections.execute(self._sql.record_mark, at)

    async def _page(self, sql: str, before: datetime, after: SweepPosition, limit: int) -> list[Row]:
        place = (after.at or _FIRST, after.tenant, after.id)
        return await self._connections.fetch(sql, before, *place, limit)

    async def _found(self, sql: str, *args: object) -> bool:
        return await self._connections.fetchrow(sql, *args) is not None

    async def _count(self, sql: str, *args: object) -> int:
        row = await self._connections.fetchrow(sql, *args)
        return 0 if row is None else row["count"]


def _ended(record: Row) -> EndedItem:
    return EndedItem(record["tenant"], record["id"], record["ended_at"])
