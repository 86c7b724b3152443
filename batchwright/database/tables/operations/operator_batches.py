"""Queries over the batches of all tenants, for operators."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from batchwright.contracts.temporal_payloads.batch import WindowFit
from batchwright.contracts.terms import BatchStatus
from batchwright.database.driver import Row
from batchwright.database.errors import UnknownCursor
from batchwright.database.list_positions import FIRST_POSITION, LAST_POSITION
from batchwright.database.pool import ConnectionPool
from batchwright.database.records import BatchRow
from batchwright.database.sql import queries
from batchwright.database.tables.batches.batch_records import parse_batch
from batchwright.database.tables.batches.custom_ids import (
    EXAMINED_AT_ONCE,
    FoundBatches,
    search_in_steps,
)
from batchwright.rules.input.custom_id_search import encode_custom_id


@dataclass(frozen=True)
class OperatorBatchFilters:
    """Conditions that select batches. A batch must meet all of them. None means no condition.

    Args:
        statuses: the batch has one of these statuses, as users see them, including `cancelling`.
        model: the batch has lines for this model. The models of a batch are known after its input was read.
        forecast: the batch has this forecast: `fits` (probably ends within its completion window), `at_risk`
            (may end later) or `late` (probably ends later).
        forecast_since: forecasts that were made at this time or earlier are ignored.
    """

    forecast_since: datetime
    tenant: str | None = None
    statuses: Collection[BatchStatus] | None = None
    model: str | None = None
    forecast: WindowFit | None = None


@dataclass(frozen=True)
class BatchCount:
    """Number of batches of one tenant that have the same status.

    `oldest` is the creation time of the oldest of these batches; None if the status is final.

    `at_risk` and `late` come from the forecasts of these batches. `at_risk` is the number of batches that may
    miss their completion window. `late` is the number of batches that will probably miss it.
    """

    tenant: str
    status: BatchStatus
    batches: int
    oldest: datetime | None = None
    at_risk: int = 0
    late: int = 0


class OperatorBatches(Protocol):
    """Queries over the batches of all tenants. Only operators may see the results."""

    async def owner(self, batch_id: str) -> str | None:
        """Return the tenant to which a batch belongs, or None if there is no such batch."""
        ...

    async def set_priority(self, tenant: str, batch_id: str, priority: int) -> int | None:
        """Set the priority of a batch, and return its previous priority.

        If there is no such batch, or if it has ended or is being cancelled, change nothing and return None.
        """
        ...

    async def page(
        self, filters: OperatorBatchFilters, *, limit: int, ascending: bool, after: str | None
    ) -> tuple[list[BatchRow], bool]:
        """Return at most `limit` batches that meet the filters. The second item is True if more follow.

        The batches are sorted by creation time, then by id. Rolling batches, which collect single calls, are
        left out, because there are very many of them. Raises UnknownCursor if there is no batch `after`.

        Args:
            ascending: True for oldest first, False for newest first.
            after: id of the last batch of the previous page; None for the first page.
        """
        ...

    async def search(
        self,
        custom_id: str,
        filters: OperatorBatchFilters,
        *,
        limit: int,
        ascending: bool,
        after: str | None,
    ) -> FoundBatches:
        """Return at most `limit` batches that meet the filters and have a line with this custom id.

        The batches are in the same order as in `page`. Raises UnknownCursor if there is no batch `after`.
        """
        ...

    async def counts(self, *, forecast_since: datetime, ended_since: datetime) -> list[BatchCount]:
        """Return the number of batches for each tenant and status. Batches that collect single calls are left
        out.

        Batches that ended at the time `ended_since` or earlier are left out, too. A forecast of a batch's end
        is ignored if it was made at the time `forecast_since` or earlier.
        """
        ...


@dataclass(frozen=True)
class OperatorBatchQueries:
    owner: str
    position: str
    set_priority: str
    page_down: str
    page_up: str
    search_down: str
    search_up: str
    found: str
    counts: str


class PostgresOperatorBatches(OperatorBatches):
    def __init__(self, connections: ConnectionPool) -> None:
        self._connections = connections
        self._sql = queries(OperatorBatchQueries, "operator_batches")

    async def owner(self, batch_id: str) -> str | None:
        record = await self._connections.fetchrow(self._sql.owner, batch_id)
        return None if record is None else record["tenant"]

    async def set_priority(self, tenant: str, batch_id: str, priority: int) -> int | None:
        record = await self._connections.fetchrow(self._sql.set_priority, tenant, batch_id, priority)
        return None if record is None else record["priority"]

    async def page(
        self, filters: OperatorBatchFilters, *, limit: int, ascending: bool, after: str | None
    ) -> tuple[list[BatchRow], bool]:
        sql = self._sql.page_up if ascending else self._sql.page_down
        position = await self._position(after, ascending=ascending)
        records = await self._connections.fetch(sql, *position, *_conditions(filters), limit + 1)
        return [parse_batch(record) for record in records[:limit]], len(records) > limit

    async def search(
        self,
        custom_id: str,
        filters: OperatorBatchFilters,
        *,
        limit: int,
        ascending: bool,
        after: str | None,
    ) -> FoundBatches:
        sql = self._sql.search_up if ascending else self._sql.search_down
        first = await self._position(after, ascending=ascending)
        conditions = (*_conditions(filters), EXAMINED_AT_ONCE, encode_custom_id(custom_id))

        async def examine(last: Row | None) -> list[Row]:
            position = first if last is None else (last["created_at"], last["id"])
            return await self._connections.fetch(sql, *position, *conditions)

        ids, last_id = await search_in_steps(examine, limit)
        records = await self._connections.fetch(self._sql.found, ids, filters.forecast_since) if ids else []
        return FoundBatches([parse_batch(each) for each in records], last_id)

    async def counts(self, *, forecast_since: datetime, ended_since: datetime) -> list[BatchCount]:
        records = await self._connections.fetch(self._sql.counts, forecast_since, ended_since)
        return [
            BatchCount(
                tenant=each["tenant"],
                status=BatchStatus(each["status"]),
                batches=each["batches"],
                oldest=each["oldest"],
                at_risk=each["at_risk"],
                late=each["late"],
            )
            for each in records
        ]

    async def _position(self, after: str | None, *, ascending: bool) -> tuple[datetime, str]:
        if after is None:
            return FIRST_POSITION if ascending else LAST_POSITION
        record = await self._connections.fetchrow(self._sql.position, after)
        if record is None:
            raise UnknownCursor(after)
        return record["created_at"], after


def _conditions(filters: OperatorBatchFilters) -> tuple[object, ...]:
    statuses = None if filters.statuses is None else list(filters.statuses)
    return (filters.tenant, statuses, filters.model, filters.forecast, filters.forecast_since)
