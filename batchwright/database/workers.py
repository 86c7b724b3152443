"""The table of worker processes."""

import json
from dataclasses import dataclass
from datetime import datetime

from batchwright.database.base import WorkersTable
from batchwright.database.connection import Connections
from batchwright.database.rows import WorkerBeat
from batchwright.database.sql import queries


@dataclass(frozen=True)
class WorkerQueries:
    beat: str
    alive: str
    beats: str


class Workers(WorkersTable):
    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._sql = queries(WorkerQueries, "workers")

    async def beat(self, worker_id: str, stats: dict[str, float], at: datetime, registry: str = "") -> None:
        await self._connections.execute(self._sql.beat, worker_id, json.dumps(stats), at, registry)

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
            )
            for record in records
        ]
