"""Table of forecasts, which say when each live batch will be done, and the query for the work left."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, Protocol

from batchwright.contracts.batch import BatchForecast
from batchwright.database.pool import ConnectionPool
from batchwright.database.sql import queries
from batchwright.database.tables.waiting_reasons import WaitingSource


class LiveWork(NamedTuple):
    """Lines of one model of a batch in progress: how many are settled, and how many are left to workers.

    `weight` is the present weight of the tenant.
    """

    tenant: str
    batch_id: str
    model: str
    created_at: datetime
    deadline: datetime
    in_progress_at: datetime
    priority: int
    weight: float
    settled: int
    lines_left: int


class ForecastRow(NamedTuple):
    tenant: str
    batch_id: str
    forecast: BatchForecast


class ForecastsTable(Protocol):
    async def work(self, at: datetime) -> list[LiveWork]:
        """Return how many lines workers have yet to settle, by batch and model, for all tenants.

        Only batches whose lines may be sent now count. Batches that are paused, cancelled, past their
        deadline, or not in the phase of sending are left out.
        """
        ...

    async def publish(self, rows: Sequence[ForecastRow], at: datetime) -> frozenset[str]:
        """Store the forecasts of batches in progress. Return the ids of the batches whose row was written.

        A row is written only if the stored forecast is at least ten seconds older. So if several control
        workers make forecasts, only one of them writes the rows. If it ends, another one takes over.
        """
        ...


@dataclass(frozen=True)
class ForecastQueries:
    work: str
    publish: str


class PostgresForecasts(ForecastsTable):
    def __init__(self, connections: ConnectionPool) -> None:
        self._connections = connections
        self._sql = queries(ForecastQueries, "forecasts")

    async def work(self, at: datetime) -> list[LiveWork]:
        records = await self._connections.fetch(self._sql.work, at, WaitingSource.USER)
        return [
            LiveWork(
                tenant=each["tenant"],
                batch_id=each["id"],
                model=each["model"],
                created_at=each["created_at"],
                deadline=each["deadline"],
                in_progress_at=each["in_progress_at"],
                priority=each["priority"],
                weight=each["weight"],
                settled=each["settled"],
                lines_left=each["lines_left"],
            )
            for each in records
        ]

    async def publish(self, rows: Sequence[ForecastRow], at: datetime) -> frozenset[str]:
        if not rows:
            return frozenset()
        records = await self._connections.fetch(
            self._sql.publish,
            [row.tenant for row in rows],
            [row.batch_id for row in rows],
            at,
            [row.forecast.model_dump_json() for row in rows],
        )
        return frozenset(record["batch_id"] for record in records)
