"""Table of forecasts of when each live batch will be done, and a query for the work that is left."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, Protocol

from batchwright.contracts.batch import BatchForecast
from batchwright.database.pool import ConnectionPool
from batchwright.database.sql import queries
from batchwright.database.tables.waiting_reasons import WaitingSource


class LiveWork(NamedTuple):
    """Lines of one model in a batch in progress: how many have a final result, and how many are left.

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
        """Return the number of lines that still need a final result, by batch and model, for all tenants.

        Only batches whose lines may be sent now count. A batch does not count if it is paused, cancelled,
        past its deadline, or not in the phase of sending.
        """
        ...

    async def publish(self, rows: Sequence[ForecastRow], at: datetime) -> frozenset[str]:
        """Store forecasts of batches in progress. Return the ids of the batches whose forecast was stored.

        A forecast is stored only if the previous one of the batch is at least ten seconds older than `at`.
        Therefore only one control worker stores forecasts, even if several make them. If that worker ends,
        another one takes over.
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
