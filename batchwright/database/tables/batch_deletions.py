"""Deletion of ended batches at the request of their tenants, in two steps."""

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from batchwright.database.errors import ResultsInUse
from batchwright.database.pool import ConnectionPool
from batchwright.database.sql import queries


class BatchDeletions(Protocol):
    """Deletes ended batches in two steps, so that an interrupted deletion can be repeated.

    Call `begin`, then delete the objects in storage, then call `remove`. The row of the batch is therefore
    deleted last.
    """

    async def begin(self, tenant: str, batch_id: str, *, keep_files: bool) -> None:
        """Delete the rows of the batch's output and error files, so that clients no longer find them.

        If `keep_files` is True, these rows stay. If results of the batch are kept for a resumption, record
        that they are no longer kept. So no other batch can claim them while the caller deletes the objects.

        Raises ResultsInUse, and changes nothing, if another batch resumes this batch and has not read the
        results of this batch yet.
        """
        ...

    async def remove(self, tenant: str, batch_id: str, at: datetime) -> bool:
        """Delete the row of an ended batch, its dead letters and all its other rows, and return True.

        The deletion is recorded with the time `at`, so that the row is never inserted again. Return False
        without a change if there is no such batch, if it has not ended, or if its files are pending.
        """
        ...

    async def is_deleted(self, tenant: str, batch_id: str) -> bool: ...

    async def forget(self, before: datetime) -> None:
        """Delete the records of the deletions that were made at the time `before` or earlier."""
        ...


@dataclass(frozen=True)
class BatchDeletionQueries:
    lock: str
    reader: str
    release_results: str
    hide_files: str
    remove: str
    is_deleted: str
    forget: str


class PostgresBatchDeletions(BatchDeletions):
    def __init__(self, connections: ConnectionPool) -> None:
        self._connections = connections
        self._sql = queries(BatchDeletionQueries, "batch_deletions")

    async def begin(self, tenant: str, batch_id: str, *, keep_files: bool) -> None:
        async with self._connections.transaction() as session:
            await session.fetchrow(self._sql.lock, tenant, batch_id)
            reader = await session.fetchrow(self._sql.reader, tenant, batch_id)
            if reader is not None:
                raise ResultsInUse(batch_id, reader["id"])
            await session.execute(self._sql.release_results, tenant, batch_id)
            if not keep_files:
                await session.execute(self._sql.hide_files, tenant, batch_id)

    async def remove(self, tenant: str, batch_id: str, at: datetime) -> bool:
        return await self._connections.fetchrow(self._sql.remove, tenant, batch_id, at) is not None

    async def is_deleted(self, tenant: str, batch_id: str) -> bool:
        return await self._connections.fetchrow(self._sql.is_deleted, tenant, batch_id) is not None

    async def forget(self, before: datetime) -> None:
        await self._connections.execute(self._sql.forget, before)
