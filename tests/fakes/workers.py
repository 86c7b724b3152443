"""Beats of workers in memory, held to the same suite as PostgreSQL's."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from batchwright.database.rows import (
    WorkerBeat,
)
from batchwright.database.workers_base import WorkersTable
from batchwright.rules.traffic import LaneTraffic
from tests.fakes.rows import Rows


class MemoryWorkers(WorkersTable):
    def __init__(self, rows: Rows) -> None:
        self._rows = rows

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
        beats = self._rows.enter().beats
        beats[worker_id] = WorkerBeat(
            id=worker_id,
            stats=dict(stats),
            registry=registry,
            beat_at=max(at, beats[worker_id].beat_at) if worker_id in beats else at,
            started_at=started_at,
        )
        self._rows.traffic[worker_id] = list(traffic)
        for silent in [name for name, last in beats.items() if last.beat_at < at - timedelta(days=1)]:
            del beats[silent], self._rows.traffic[silent]

    async def alive(self, since: datetime) -> int:
        return sum(last.beat_at >= since for last in self._rows.enter().beats.values())

    async def beats(self, since: datetime) -> list[WorkerBeat]:
        beats = self._rows.enter().beats
        return [beats[name] for name in sorted(beats) if beats[name].beat_at >= since]

    async def traffic(self, since: datetime) -> list[LaneTraffic]:
        sums: dict[tuple[str, str], LaneTraffic] = {}
        for lane in [lane for beat in await self.beats(since) for lane in self._rows.traffic[beat.id]]:
            key = (lane.model, lane.backend)
            known = sums.get(key, LaneTraffic(model=lane.model, backend=lane.backend))
            added = {
                "requests": known.requests + lane.requests,
                "errors": known.errors + lane.errors,
                "seconds": known.seconds + lane.seconds,
                "pending": known.pending + lane.pending,
            }
            sums[key] = lane.model_copy(update=added)
        return [sums[key] for key in sorted(sums)]
