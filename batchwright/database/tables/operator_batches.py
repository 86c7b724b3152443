"""Queries over the batches of all tenants, for operators."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from batchwright.contracts.batch import WindowFit
from batchwright.contracts.openai import BatchStatus
from batchwright.database.pool import ConnectionPool
from batchwright.database.records import BatchRow
from batchwright.database.sql import queries
from batchwright.database.tables.batch_records import parse_batch


@dataclass(frozen=True)
class BatchFilters:
    """Selects batches. A field that is None selects all of them.

    Args:
        statuses: Statuses as users see them, which include `cancelling`.
        model: Only batches with lines for this model. Their input has been read.
        forecast: Only batches with this forecast.
        forecast_since: Forecasts that are not newer are ignored.
    """

    forecast_since: datetime
    tenant: str | None = None
    statuses: Collection[BatchStatus] | None = None
    model: str | None = None
    forecast: WindowFit | None = None


@dataclass(frozen=True)
class BatchCount:
    """Number of batches of one tenant with the same status.

    `oldest` is the time at which the oldest one was created; None for ended batches.
    """

    tenant: str
    status: BatchStatus
    batches: int
    oldest: datetime | None = None
    at_risk: int = 0
    late: int = 0


class OperatorBatches(Protocol):
    """Queries over the batches of all tenants. No tenant sees the results."""

    async def owner(self, batch_id: str) -> str | None:
        """Return the tenant of a batch; None if there is no such batch."""
        ...

    async def page(
        self, filters: BatchFilters, *, limit: int, ascending: bool, after: str | None
    ) -> tuple[list[BatchRow], bool]:
        """Return at most `limit` batches sorted by id, which is the order of creation, and True for more.

        Args:
            ascending: True for the oldest first, False for the newest first.
            after: id of the last batch of the page before; None for the first page.
        """
        ...

    async def counts(self, *, forecast_since: datetime, ended_since: datetime) -> list[BatchCount]:
        """Count the live batches, and those that ended after `ended_since`, by tenant and status.

        Forecasts that are not newer than `forecast_since` are ignored.
        """
        ...


@dataclass(frozen=True)
class OperatorBatchQueries:
    owner: str
    page_down: str
    page_up: str
    counts: str


class PostgresOperatorBatches(OperatorBatches):
    def __init__(self, connections: ConnectionPool) -> None:
        self._connections = connections
        self._sql = queries(OperatorBatchQueries, "operator_batches")

    async def owner(self, batch_id: str) -> str | None:
        record = await self._connections.fetchrow(self._sql.owner, batch_id)
        return None if record is None else record["tenant"]

    async def page(
        self, filters: BatchFilters, *, limit: int, ascending: bool, after: str | None
    ) -> tuple[list[BatchRow], bool]:
        records = await self._connections.fetch(
            self._sql.page_up if ascending else self._sql.page_down,
            after,
            filters.tenant,
            None if filters.statuses is None else list(filters.statuses),
            filters.model,
            filters.forecast,
            filters.forecast_since,
            limit + 1,
        )
        return [parse_batch(record) for record in records[:limit]], len(records) > limit

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
