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

        The page has the oldest of these batches, sorted newest first. The second item is True if there are
        even newer batches. The batch `before` can have another endpoint. Raises UnknownCursor if the tenant
        has no batch `before`.
        """
        ...

    async def count_live(self, tenant: str) -> int: ...

    async def fairness_key(self, tenant: str, at: datetime) -> str:
        """Return the fairness key in Temporal for a batch that is created at `at`.

        Temporal shares the capacity of a task queue fairly between fairness keys. There are three cases:

        - Other batches of the tenant run and are not being cancelled: return the key of the newest of them.
          As a result, all batches of the tenant that run at the same time have the same key.
        - No other batch runs, but an earlier batch was cancelled or has expired: return a new key. With the
          old key, the batch would have to wait for other tenants, because Temporal counts the unsent lines of
          the earlier batch as use of this key.
        - In all other cases, return "". The tenant's name is then the key.
        """
        ...

    async def output_history(
        self, tenant: str, endpoint: Endpoint, models: Collection[str]
    ) -> dict[str, OutputHistory]:
        """Return the numbers of requests and output tokens in the tenant's latest ended batches, by model.

        At most 100 batches count, and only batches for this endpoint. A model in `models` is left out if
        these batches had no requests for it.
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
