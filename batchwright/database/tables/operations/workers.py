"""Tables of the latest heartbeat of each worker process, and of the load from interactive calls.

An interactive call is a request that an API process sends to a backend while the client waits for the answer.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from pydantic import TypeAdapter

from batchwright.database.pool import ConnectionPool
from batchwright.database.records import BackendLoad, InteractiveRate, WorkerHeartbeat
from batchwright.database.sql import queries
from batchwright.rules.json_text import storable_json
from batchwright.rules.worker_stats import UpstreamTraffic


class WorkersTable(Protocol):
    async def record_heartbeat(
        self,
        worker_id: str,
        stats: dict[str, float],
        registry: str = "",
        *,
        traffic: Sequence[UpstreamTraffic] = (),
        started_at: datetime | None = None,
    ) -> None:
        """Replace the stored heartbeat of a worker. Delete workers that have sent no heartbeat for a day.

        The time of a heartbeat comes from the clock of the database. All methods compare this time with the
        same clock, so all processes agree on which workers are live.

        Args:
            worker_id: `host:pid` of the worker process.
            stats: numbers by name. They are the number of requests in flight, 1 for each task queue that the
                worker polls, and the number of running slices (parts of a model's lines) for each batch and
                model. The names are explained in `rules/worker_stats.py`.
            registry: hash of the model registry (the list of models and backends) that the worker uses.
            traffic: counts of the requests that the worker sent since `started_at`, by model and backend.
            started_at: start of the worker process.
        """
        ...

    async def count_alive(self, max_age: timedelta) -> int:
        """Return the number of workers that sent a heartbeat within the last `max_age`."""
        ...

    async def heartbeats(self, max_age: timedelta) -> list[WorkerHeartbeat]:
        """Return the latest heartbeat of each worker that sent one within `max_age`, sorted by worker id."""
        ...

    async def traffic(self, max_age: timedelta) -> list[UpstreamTraffic]:
        """Return the counts of requests to backends, by model and backend, added up over all live workers.

        Each worker counts the requests that it has sent since its start. A worker is live if its latest
        heartbeat is at most `max_age` old.
        """
        ...

    async def report_interactive_load(self, process: str, loads: Sequence[BackendLoad]) -> None:
        """Store how many requests an API process has in flight for waiting clients.

        The earlier numbers of this process are replaced. `loads` has at most one item for each backend.
        """
        ...

    async def interactive_load(self, max_age: timedelta) -> list[BackendLoad]:
        """Return how many requests API processes have in flight for waiting clients, by backend.

        The counts are added up over all API processes and sorted by backend. Reports older than `max_age` are
        ignored. Backends without requests are left out.
        """
        ...

    async def report_interactive_rates(self, process: str, rates: Sequence[InteractiveRate]) -> None:
        """Store the rates of one API process for interactive calls, whose clients wait for the answers.

        The earlier rates of this process are replaced. A rate is the number of requests and of tokens per
        minute. `rates` has at most one item for each tenant and at most one for each model.
        """
        ...

    async def interactive_rates(self, max_age: timedelta, *, except_for: str = "") -> list[InteractiveRate]:
        """Return the requests and tokens per minute of interactive calls, added up over all API processes.

        Clients wait for the answers to these calls. The list has one item per model, sorted by name, and then
        one item per tenant, sorted by name. Reports older than `max_age` are ignored. The report of the
        process `except_for` is also ignored.
        """
        ...


_TRAFFIC = TypeAdapter(list[UpstreamTraffic])


@dataclass(frozen=True)
class WorkerQueries:
    record_heartbeat: str
    count_alive: str
    heartbeats: str
    traffic: str
    report_interactive_load: str
    interactive_load: str
    report_interactive_rates: str
    interactive_rates: str


class PostgresWorkers(WorkersTable):
    def __init__(self, connections: ConnectionPool) -> None:
        self._connections = connections
        self._sql = queries(WorkerQueries, "workers")

    async def record_heartbeat(
        self,
        worker_id: str,
        stats: dict[str, float],
        registry: str = "",
        *,
        traffic: Sequence[UpstreamTraffic] = (),
        started_at: datetime | None = None,
    ) -> None:
        numbers, sent = json.dumps(stats), _TRAFFIC.dump_json(list(traffic)).decode()
        await self._connections.execute(
            self._sql.record_heartbeat,
            worker_id,
            storable_json(numbers),
            registry,
            storable_json(sent),
            started_at,
        )

    async def count_alive(self, max_age: timedelta) -> int:
        record = await self._connections.fetchrow(self._sql.count_alive, max_age)
        return 0 if record is None else record["count"]

    async def heartbeats(self, max_age: timedelta) -> list[WorkerHeartbeat]:
        records = await self._connections.fetch(self._sql.heartbeats, max_age)
        return [
            WorkerHeartbeat(
                id=record["id"],
                stats=json.loads(record["stats"]),
                registry=record["registry"],
                beat_at=record["beat_at"],
                started_at=record["started_at"],
            )
            for record in records
        ]

    async def traffic(self, max_age: timedelta) -> list[UpstreamTraffic]:
        records = await self._connections.fetch(self._sql.traffic, max_age)
        return [UpstreamTraffic.model_validate(dict(record)) for record in records]

    async def report_interactive_load(self, process: str, loads: Sequence[BackendLoad]) -> None:
        columns = [list(column) for column in zip(*loads, strict=True)] or [[], [], []]
        await self._connections.execute(self._sql.report_interactive_load, process, *columns)

    async def interactive_load(self, max_age: timedelta) -> list[BackendLoad]:
        records = await self._connections.fetch(self._sql.interactive_load, max_age)
        return [BackendLoad(record["backend"], record["in_flight"], record["mean"]) for record in records]

    async def report_interactive_rates(self, process: str, rates: Sequence[InteractiveRate]) -> None:
        columns = (
            [each.of_tenant for each in rates],
            [each.name for each in rates],
            [each.requests for each in rates],
            [each.tokens for each in rates],
        )
        await self._connections.execute(self._sql.report_interactive_rates, process, *columns)

    async def interactive_rates(self, max_age: timedelta, *, except_for: str = "") -> list[InteractiveRate]:
        records = await self._connections.fetch(self._sql.interactive_rates, max_age, except_for)
        return [
            InteractiveRate(
                *(record["of_tenant"], record["name"], record["requests"], record["tokens"]),
                processes=record["processes"],
            )
            for record in records
        ]
