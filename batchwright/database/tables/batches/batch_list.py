"""Queries over all batches of one tenant: pages of the list, and facts for the creation of a new batch."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from batchwright.contracts.terms import BatchStatus, Endpoint
from batchwright.database.driver import Row
from batchwright.database.list_positions import FIRST_POSITION, LAST_POSITION, position_of
from batchwright.database.pool import ConnectionPool
from batchwright.database.records import BatchRow
from batchwright.database.sql import queries
from batchwright.database.tables.batches.batch_records import parse_batch
from batchwright.rules.batch_filters import NO_FILTERS, BatchFilters, endpoint_tag
from batchwright.rules.dispatch.fair_queue import fresh_fairness_key
from batchwright.rules.planning.cost_estimate import OutputHistory


class BatchList(Protocol):
    """All batches of a tenant, including those that have ended."""

    async def page(
        self, tenant: str, *, limit: int, after: str | None, filters: BatchFilters = NO_FILTERS
    ) -> tuple[list[BatchRow], bool]:
        """Return a page of at most `limit` batches, newest first. The second item is True if more follow.

        Raises UnknownCursor if the tenant has no batch `after`.

        Args:
            after: id of a batch. The page has the batches that are older than this batch. None for the first
                page.
            filters: conditions that the batches meet.
        """
        ...

    async def page_before(
        self, tenant: str, before: str, *, limit: int, endpoint: Endpoint
    ) -> tuple[list[BatchRow], bool]:
        """Return a page of at most `limit` batches for one endpoint that are newer than the batch `before`.

        If more than `limit` batches are newer, return the oldest of these, and True as the second item. The
        page is sorted newest first. The batch `before` itself can be for another endpoint. Raises
        UnknownCursor if the tenant has no batch `before`.
        """
        ...

    async def count_live(self, tenant: str) -> int: ...

    async def fairness_key(self, tenant: str, at: datetime) -> str:
        """Return the fairness key in Temporal for a batch that is created at `at`.

        Temporal shares the capacity of a task queue fairly between fairness keys. There are three cases:

        - The tenant has running batches that are not being cancelled: return the key of the newest of these
          batches. So all running batches of the tenant have the same key.
        - The tenant has no such batch, but one of its batches was cancelled, is being cancelled or has
          expired: return a new key. Temporal counts the unsent lines of that batch as if they had been sent
          with the old key. With the old key, the new batch would therefore have to wait for other tenants.
        - In all other cases, return "". The tenant's name is then the key.
        """
        ...

    async def output_history(
        self, tenant: str, endpoint: Endpoint, models: Collection[str]
    ) -> dict[str, OutputHistory]:
        """Return the number of requests and of output tokens for each model in the tenant's latest batches.

        Only ended batches for this endpoint are read, and at most the latest 100 of them. If these batches
        had no requests for a model in `models`, the model is left out.
        """
        ...


@dataclass(frozen=True)
class BatchListQueries:
    position: str
    all: str
    of_status: str
    of_tags: str
    before: str
    count_live: str
    fairness: str
    output_history: str


class PostgresBatchList(BatchList):
    def __init__(self, connections: ConnectionPool) -> None:
        self._connections = connections
        self._sql = queries(BatchListQueries, "batch_list")

    async def page(
        self, tenant: str, *, limit: int, after: str | None, filters: BatchFilters = NO_FILTERS
    ) -> tuple[list[BatchRow], bool]:
        records = await self._records(tenant, limit + 1, after, filters)
        return [parse_batch(record) for record in records[:limit]], len(records) > limit

    async def page_before(
        self, tenant: str, before: str, *, limit: int, endpoint: Endpoint
    ) -> tuple[list[BatchRow], bool]:
        async with self._connections.session() as session:
            position = await position_of(session, self._sql.position, tenant, before)
            tag = endpoint_tag(endpoint)
            records = await session.fetch(self._sql.before, tenant, *position, limit + 1, tag)
        return [parse_batch(record) for record in reversed(records[:limit])], len(records) > limit

    async def count_live(self, tenant: str) -> int:
        record = await self._connections.fetchrow(self._sql.count_live, tenant)
        return 0 if record is None else record["count"]

    async def fairness_key(self, tenant: str, at: datetime) -> str:
        record = await self._connections.fetchrow(self._sql.fairness, tenant, at)
        beside, stopped = (None, None) if record is None else (record["beside"], record["stopped"])
        if beside is not None:
            return beside
        return "" if stopped is None else fresh_fairness_key(tenant, stopped)

    async def output_history(
        self, tenant: str, endpoint: Endpoint, models: Collection[str]
    ) -> dict[str, OutputHistory]:
        records = await self._connections.fetch(self._sql.output_history, tenant, endpoint, list(models))
        return {each["model"]: OutputHistory(each["requests"], each["output_tokens"]) for each in records}

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
                bounds = (*bounds, statuses, tags[0], tags[1:])
                return await session.fetch_with_custom_plan(self._sql.of_tags, *bounds)
            if status is not None:
                return await session.fetch(self._sql.of_status, *bounds, status)
            return await session.fetch(self._sql.all, *bounds)
