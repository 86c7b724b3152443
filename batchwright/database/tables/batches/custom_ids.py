"""Table of the custom ids of lines, and the search for batches that have a line with a certain custom id."""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from batchwright.contracts.terms import BatchStatus
from batchwright.database.driver import Row
from batchwright.database.list_positions import FIRST_POSITION, LAST_POSITION, position_of
from batchwright.database.pool import ConnectionPool
from batchwright.database.records import BatchRow
from batchwright.database.sql import queries
from batchwright.database.tables.batches.batch_records import parse_batch
from batchwright.rules.batch_filters import NO_FILTERS, BatchFilters
from batchwright.rules.input.custom_id_search import CustomIdPart, encode_custom_id

# Batches of one statement. Those of 10 million lines have 40 rows each, and a statement may take up to
# QUERY_SECONDS, even if all rows are read from a slow disk.
EXAMINED_AT_ONCE = 100
MAX_STATEMENTS = 200  # statements for one page
_MAX_SECONDS = 5.0  # for one page; a running statement is still completed


class FoundBatches(NamedTuple):
    """A page of the batches that have a line with a certain custom id.

    A search for a page stops after MAX_STATEMENTS queries or about five seconds. The page can therefore have
    few batches or none, although more batches follow.

    Attributes:
        last_id: id of the batch after which the next page begins; None if all batches were examined.
    """

    rows: list[BatchRow]
    last_id: str | None


class CustomIdsTable(Protocol):
    """Fingerprints (short hashes) of the custom ids of lines, by batch. They are deleted with the batch."""

    async def store(self, tenant: str, batch_id: str, number: int, part: CustomIdPart) -> None:
        """Store one part of the fingerprints (short hashes) of a batch's custom ids.

        `number` is the number of the part in the batch. If this part is stored already, or if the batch has
        no row, nothing changes.
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

        Batches that are still in validation are not found. Raises UnknownCursor if the tenant has no batch
        `after`.

        Args:
            after: id of the batch after which to continue; None for the first page.
            filters: other conditions for the batches. A condition on the metadata, the model or the endpoint
                makes the search faster, because only batches that meet this condition are examined.
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
    def __init__(self, connections: ConnectionPool) -> None:
        self._connections = connections
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
                bounds = (*bounds, tags[0], tags[1:])
                async with self._connections.session() as session:
                    return await session.fetch_with_custom_plan(self._sql.search_tagged, *bounds)
            return await self._connections.fetch(self._sql.search, *bounds)

        ids, last_id = await search_in_steps(examine, limit)
        records = await self._connections.fetch(self._sql.rows, tenant, ids) if ids else []
        return FoundBatches([parse_batch(each) for each in records], last_id)


async def search_in_steps(
    examine: Callable[[Row | None], Awaitable[list[Row]]], limit: int
) -> tuple[list[str], str | None]:
    """Search a list of batches in steps. Return the ids of at most `limit` found batches, and a cursor.

    The cursor is the id of the batch after which the next search continues; None if all batches were
    examined.

    Args:
        examine: function that examines the next EXAMINED_AT_ONCE batches of the list. The argument of the
            function is the last record of the previous step; None in the first step. The function returns a
            record for each batch that it has found. If the step has EXAMINED_AT_ONCE batches, the function
            also returns a record for the last batch of the step. In a record, `is_found` is True if the batch
            was found, and `place` is the position of the batch in the step, from 1.
    """
    found, last, end = list[str](), None, time.monotonic() + _MAX_SECONDS
    for _ in range(MAX_STATEMENTS):
        records = await examine(last)
        found += [each["id"] for each in records if each["is_found"]]
        if len(found) > limit:
            return found[:limit], found[limit - 1]
        last = records[-1] if records else None
        if last is None or last["place"] < EXAMINED_AT_ONCE:
            return found, None
        if time.monotonic() >= end:
            break
    return found, None if last is None else last["id"]
