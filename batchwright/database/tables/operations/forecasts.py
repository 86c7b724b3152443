"""Tables of forecasts and of models' speeds, and a query for the lines that still need a result.

The speed of a model says how many of its lines get a result per second, and how long its requests take.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple, Protocol

from batchwright.contracts.temporal_payloads.batch import BatchForecast, StartForecast
from batchwright.database.pool import ConnectionPool
from batchwright.database.sql import queries
from batchwright.database.tables.batches.waiting_reasons import WaitingSource
from batchwright.rules.forecast.model_queue import ModelSpeed
from batchwright.rules.forecast.work_ahead import UnsettledWork

SPEED_AGE = timedelta(hours=1)  # an older speed of a model is not used


class LiveWork(NamedTuple):
    """Lines of one model in a batch in progress: the number with a final result, and the number without one.

    `settled` is the number of lines with a final result from a worker. Lines that got their result when the
    input was read are in neither number. `weight` is the weight of the tenant: a tenant with a greater weight
    gets more of the capacity. `limited` is True if the tenant has a rate limit, or if the tenant or the
    batch's API key has a cap on requests in flight.
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
    limited: bool = False

    @property
    def unsettled(self) -> UnsettledWork:
        return UnsettledWork(
            tenant=self.tenant,
            batch_id=self.batch_id,
            model=self.model,
            settled=self.settled,
            left=self.lines_left,
            began=self.in_progress_at.timestamp(),
            weight=self.weight,
            priority=self.priority,
            limited=self.limited,
        )


class ForecastRow(NamedTuple):
    tenant: str
    batch_id: str
    forecast: BatchForecast


class ForecastsTable(Protocol):
    async def work(self, at: datetime, models: Collection[str] | None = None) -> list[LiveWork]:
        """Return how many lines still need a final result, by batch and model, for all tenants.

        Only batches that may send lines at the time `at` are included. Batches that are paused, stopped by an
        operator, being cancelled or past their deadline are left out. If `models` is not None, only these
        models are included.
        """
        ...

    async def publish(self, rows: Sequence[ForecastRow], at: datetime) -> frozenset[str]:
        """Store forecasts of when batches end. Return the ids of the batches whose forecast was stored.

        The batches are in progress. Several workers make forecasts, but usually only one of them stores them.
        A stored forecast is replaced in two cases:

        - The stored forecast is at least ten seconds older than `at`.
        - The stored forecast is more than a minute newer than `at`, because the clock of another worker was
          ahead.
        """
        ...

    async def publish_speeds(self, speeds: Mapping[str, ModelSpeed], at: datetime) -> None:
        """Store the speeds of models (lines that get a result per second), measured at the time `at`.

        A stored speed is replaced in two cases:

        - The stored speed is at least ten seconds older than `at`.
        - The stored speed is more than a minute newer than `at`, because the clock of another worker was
          ahead.

        A stored speed of a model that is not in `speeds` is deleted if it is at least SPEED_AGE older, or
        more than a minute newer, than `at`.
        """
        ...

    async def speeds(self, models: Collection[str], at: datetime) -> dict[str, ModelSpeed]:
        """Return the stored speeds of these models (lines that get a result per second), by model.

        A speed that was measured SPEED_AGE or longer before the time `at` is left out.
        """
        ...

    async def record_start(self, tenant: str, batch_id: str, forecast: StartForecast) -> StartForecast | None:
        """Store the forecast of a batch's end that was made before its first line was sent, and return it.

        If a forecast is already stored, keep it and return it. If the status of the batch is not
        `validating`, change nothing and return None.
        """
        ...


@dataclass(frozen=True)
class ForecastQueries:
    work: str
    publish: str
    publish_speeds: str
    speeds: str
    record_start: str


class PostgresForecasts(ForecastsTable):
    def __init__(self, connections: ConnectionPool) -> None:
        self._connections = connections
        self._sql = queries(ForecastQueries, "forecasts")

    async def work(self, at: datetime, models: Collection[str] | None = None) -> list[LiveWork]:
        names = None if models is None else list(models)
        records = await self._connections.fetch(self._sql.work, at, WaitingSource.USER, names)
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
                limited=each["limited"],
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

    async def publish_speeds(self, speeds: Mapping[str, ModelSpeed], at: datetime) -> None:
        if speeds:
            texts = [speed.model_dump_json() for speed in speeds.values()]
            await self._connections.execute(self._sql.publish_speeds, list(speeds), at, texts, SPEED_AGE)

    async def speeds(self, models: Collection[str], at: datetime) -> dict[str, ModelSpeed]:
        records = await self._connections.fetch(self._sql.speeds, list(models), at - SPEED_AGE)
        return {each["model"]: ModelSpeed.model_validate_json(each["speed"]) for each in records}

    async def record_start(self, tenant: str, batch_id: str, forecast: StartForecast) -> StartForecast | None:
        record = await self._connections.fetchrow(
            self._sql.record_start, tenant, batch_id, forecast.model_dump_json()
        )
        return None if record is None else StartForecast.model_validate_json(record["start_forecast"])
