"""The table of worker processes."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from pydantic import TypeAdapter

from batchwright.database.connection import Connections
from batchwright.database.rows import WorkerBeat
from batchwright.database.sql import queries
from batchwright.database.workers_base import WorkersTable
from batchwright.rules.traffic import LaneTraffic

_TRAFFIC = TypeAdapter(list[LaneTraffic])


@dataclass(frozen=True)
class WorkerQueries:
    beat: str
    alive: str
    beats: str
    traffic: str


class Workers(WorkersTable):
    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._sql = queries(WorkerQueries, "workers")

    async def beat(
        self,
        worker_id: str,
        stats: dict[str, float],
        at: datetime,
        registry: str = "",
        *,
        traffic: Sequence[LaneTraffic] = (),
        started_at: datetime | None = None,
    ) -> None:
        sent = _TRAFFIC.dump_json(list(traffic)).decode()
        await self._connections.execute(
            self._sql.beat, worker_id, json.dumps(stats), at, registry, sent, started_at
        )

    async def alive(self, since: datetime) -> int:
        record = await self._connections.fetchrow(self._sql.alive, since)
        return 0 if record is None else record["count"]

    async def beats(self, since: datetime) -> list[WorkerBeat]:
        records = await self._connections.fetch(self._sql.beats, since)
        return [
            WorkerBeat(
                id=record["id"],
                stats=json.loads(record["stats"]),
                registry=record["registry"],
                beat_at=record["beat_at"],
                started_at=record["started_at"],
            )
            for record in records
        ]

    async def traffic(self, since: datetime) -> list[LaneTraffic]:
        records = await self._connections.fetch(self._sql.traffic, since)
        return [LaneTraffic.model_validate(dict(record)) for record in records]
