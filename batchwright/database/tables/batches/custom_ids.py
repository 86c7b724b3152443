"""Table of the custom ids of batches, and the search for the batches of a line."""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from batchwright.contracts.terms import BatchStatus
from batchwright.database.driver import Row
from batchwright.database.pool import ConnectionPool
from batchwright.database.records import BatchRow
from batchwright.database.sql import queries
from batchwright.database.tables.batches.batch_records import parse_batch
from batchwright.database.tables.files import FIRST_POSITION, LAST_POSITION, position_of
from batchwright.rules.batch_filters import NO_FILTERS, BatchFilters
from batchwright.rules.input.custom_id_search import CustomIdPart, encode_custom_id

# Batches of one statement. Those of 10 million lines have 40 rows each, and a statement may take up to
# QUERY_SECONDS, even if all rows are read from a slow disk.
EXAMINED_AT_ONCE = 100
MAX_STATEMENTS = 200  # of one page
_MAX_SECONDS = 5.0  # of one page; the statement that then runs is still completed

Clock = Callable[[], float]


class FoundBatches(NamedTuple):
    """A page of the batches that have a line with a certain custom id.

    Attributes:
        last_id: id of the batch after which the list may continue; None if all batches were examined. A page
            that continues may have few rows or none, because statements and time of the search are limited.
    """

    rows: list[BatchRow]
    last_id: str | None


class CustomIdsTable(Protocol):
    """Custom ids of the lines of batches, as fingerprints. They are deleted with the batch."""

    async def store(self, tenant: str, batch_id: str, number: int, part: CustomIdPart) -> None:
        """Store a part of the custom ids of a batch.

        If the batch has a part with this number, or if it has no row, nothing changes.
        """
        ...

    async def search(
        self,
        tenant: str,
        custom_id: str,
        *,
        limit: int,
        after: str | None,
        filters: BatchFilters = NO_FILTERS,
    ) -> FoundBatches:
        """Return at most `limit` batches of the tenant that have a line with this custom id, newest first.

        A batch is found from the end of its validation on. Raises UnknownCursor if the tenant has no batch
        `after`.

        Args:
            after: id of the batch after which to continue; None for the first page.
            filters: other conditions for the batches. With metadata, a model or an endpoint, only batches
                that have them are examined.
        """
        ...


@dataclass(frozen=True)
class CustomIdQueries:
    store: str
    position: str
    search: str
    search_tagged: str
    rows: str


class PostgresCustomIds(CustomIdsTable):
    def __init__(self, connections: ConnectionPool, clock: Clock = time.monotonic) -> None:
        self._connections, self._clock = connections, clock
        self._sql = queries(CustomIdQueries, "custom_ids")

    async def store(self, tenant: str, batch_id: str, number: int, part: CustomIdPart) -> None:
        await self._connections.execute(self._sql.store, tenant, batch_id, number, *part)

    async def search(
        self,
        tenant: str,
        custom_id: str,
        *,
        limit: int,
        after: str | None,
        filters: BatchFilters = NO_FILTERS,
    ) -> FoundBatches:
        first = LAST_POSITION
        if after is not None:
            async with self._connections.session() as session:
                first = await position_of(session, self._sql.position, tenant, after)
        if filters.created_before is not None:
            first = min(first, (filters.created_before, ""))
        oldest = filters.created_after or FIRST_POSITION[0]
        statuses = list(BatchStatus) if filters.status is None else [filters.status]
        conditions = (oldest, encode_custom_id(custom_id), statuses)
        tags = filters.tags

        async def examine(last: Row | None) -> list[Row]:
            position = first if last is None else (last["created_at"], last["id"])
            bounds = (tenant, *position, EXAMINED_AT_ONCE, *conditions)
            if tags:
                return await self._connections.fetch(self._sql.search_tagged, *bounds, tags[0], tags[1:])
            return await self._connections.fetch(self._sql.search, *bounds)

        ids, last_id = await search_in_steps(examine, limit, self._clock)
        records = await self._connections.fetch(self._sql.rows, tenant, ids) if ids else []
        return FoundBatches([parse_batch(each) for each in records], last_id)


async def search_in_steps(
    examine: Callable[[Row | None], Awaitable[list[Row]]], limit: int, clock: Clock
) -> tuple[list[str], str | None]:
    """Return the ids of at most `limit` batches that `examine` finds, and the id after which to continue.

    The second item is None if all batches of the list were examined.

    Args:
        examine: examines EXAMINED_AT_ONCE batches after the one in a record, or the first ones, and returns
            those that are found (`is_found`), and the last one if all of them exist. `place` is a batch's
            number among them, from 1.
        clock: returns the time in seconds, for the limit of the whole search.
    """
    found, last, end = list[str](), None, clock() + _MAX_SECONDS
    for _ in range(MAX_STATEMENTS):
        records = await examine(last)
        found += [each["id"] for each in records if each["is_found"]]
        if len(found) > limit:
            return found[:limit], found[limit - 1]
        last = records[-1] if records else None
        if last is None or last["place"] < EXAMINED_AT_ONCE:
            return found, None
        if clock() >= end:
            break
    return found, None if last is None else last["id"]
