"""Deletion of ended batches at the request of their tenants, in two steps."""

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from batchwright.database.errors import ResultsInUse
from batchwright.database.pool import ConnectionPool
from batchwright.database.sql import queries


class BatchDeletions(Protocol):
    """The deletion of ended batches in two steps, so that an interrupted deletion can be repeated.

    First call `begin`. Then delete the batch's objects in storage, and call `remove`. The row of the batch is
    deleted last, so it exists until everything else is deleted.
    """

    async def begin(self, tenant: str, batch_id: str, *, keep_files: bool) -> None:
        """Begin the deletion of a batch. The caller can then delete the batch's objects in storage.

        - Record that the results of the batch are no longer kept. From then on, no new batch can continue
          this batch and copy its results, even if the output and error files are kept.
        - If `keep_files` is False, delete the rows of the output and error files. Clients then no longer find
          these files.

        Raises ResultsInUse, and changes nothing, if another batch continues this batch, and has not yet
        copied all results of this batch.
        """
        ...

    async def remove(self, tenant: str, batch_id: str, at: datetime) -> bool:
        """Delete the row of an ended batch and everything that belongs to the batch, and return True.

        Also record that the batch was deleted at the time `at`, so that no process can insert its row again.
        Change nothing and return False if there is no such batch, if it has not ended, or if its files are
        not written yet.
        """
        ...

    async def is_deleted(self, tenant: str, batch_id: str) -> bool: ...

    async def forget(self, before: datetime) -> None:
        """Remove the records of deletions that happened at the time `before` or earlier."""
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
