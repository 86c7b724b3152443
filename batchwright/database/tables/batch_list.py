"""Pages of the list of batches, with filters."""

from dataclasses import dataclass

from batchwright.contracts.openai import BatchStatus
from batchwright.database.driver import Row
from batchwright.database.pool import ConnectionPool
from batchwright.database.records import BatchRow
from batchwright.database.sql import queries
from batchwright.database.tables.batch_records import parse_batch
from batchwright.database.tables.files import FIRST_POSITION, LAST_POSITION, position_of
from batchwright.rules.batch_filters import BatchFilters


@dataclass(frozen=True)
class BatchListQueries:
    position: str
    all: str
    of_status: str
    of_tags: str
    of_tags_before: str


class PostgresBatchList:
    def __init__(self, connections: ConnectionPool) -> None:
        self._connections = connections
        self._sql = queries(BatchListQueries, "batch_list")

    async def page(
        self, tenant: str, *, limit: int, after: str | None, filters: BatchFilters, before: str | None
    ) -> tuple[list[BatchRow], bool]:
        """Return one page of a tenant's batches, as described in `BatchesTable.page`."""
        if before is None:
            records = await self._records(tenant, limit + 1, after, filters)
            return [parse_batch(record) for record in records[:limit]], len(records) > limit
        records = await self._records_before(tenant, limit + 1, before, filters.tags)
        return [parse_batch(record) for record in reversed(records[:limit])], len(records) > limit

    async def _records(self, tenant: str, count: int, after: str | None, filters: BatchFilters) -> list[Row]:
        status, tags = filters.status, filters.tags
        oldest = filters.created_after or FIRST_POSITION[0]
        async with self._connections.session() as session:
            position = LAST_POSITION
            if after is not None:
                position = await position_of(session, self._sql.position, tenant, after)
            if filters.created_before is not None:
                position = min(position, (filters.created_before, ""))
            bounds = (tenant, *position, count, oldest)
            if tags:
                statuses = list(BatchStatus) if status is None else [status]
                return await session.fetch(self._sql.of_tags, *bounds, statuses, tags[0], tags[1:])
            if status is not None:
                return await session.fetch(self._sql.of_status, *bounds, status)
            return await session.fetch(self._sql.all, *bounds)

    async def _records_before(self, tenant: str, count: int, before: str, tags: list[bytes]) -> list[Row]:
        """Return the batches that are newer than `before` and have all the tags, oldest first."""
        async with self._connections.session() as session:
            position = await position_of(session, self._sql.position, tenant, before)
            return await session.fetch(self._sql.of_tags_before, tenant, *position, count, tags[0], tags[1:])
