"""Fake table of worker heartbeats, in memory. It passes the tests of the PostgreSQL table."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from batchwright.database.records import BackendLoad, InteractiveRate, WorkerHeartbeat
from batchwright.database.tables.operations.workers import WorkersTable
from batchwright.rules.worker_stats import UpstreamTraffic
from tests.fakes.tables.rows import Rows


class MemoryWorkers(WorkersTable):
    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    async def record_heartbeat(
        self,
        worker_id: str,
        stats: dict[str, float],
        registry: str = "",
        *,
        traffic: Sequence[UpstreamTraffic] = (),
        started_at: datetime | None = None,
    ) -> None:
        beats, now = self._rows.enter().beats, self._rows.clock()
        beats[worker_id] = WorkerHeartbeat(
            id=worker_id,
            stats=dict(stats),
            registry=registry,
            beat_at=now,
            started_at=started_at,
        )
        self._rows.traffic[worker_id] = list(traffic)
        for silent in [name for name, last in beats.items() if last.beat_at < now - timedelta(days=1)]:
            del beats[silent], self._rows.traffic[silent]

    async def count_alive(self, max_age: timedelta) -> int:
        return len(await self.heartbeats(max_age))

    async def heartbeats(self, max_age: timedelta) -> list[WorkerHeartbeat]:
        beats = self._rows.enter().live_beats(max_age)
        return sorted(beats, key=lambda beat: beat.id)

    async def traffic(self, max_age: timedelta) -> list[UpstreamTraffic]:
        sums: dict[tuple[str, str], UpstreamTraffic] = {}
        for lane in [lane for beat in await self.heartbeats(max_age) for lane in self._rows.traffic[beat.id]]:
            key = (lane.model, lane.backend)
            known = sums.get(key, UpstreamTraffic(model=lane.model, backend=lane.backend))
            added = {
                "requests": known.requests + lane.requests,
                "errors": known.errors + lane.errors,
                "seconds": known.seconds + lane.seconds,
                "squared_seconds": known.squared_seconds + lane.squared_seconds,
                "pending": known.pending + lane.pending,
                "tokens_per_second": known.tokens_per_second + lane.tokens_per_second,
                "open_circuits": known.open_circuits + lane.open_circuits,
            }
            sums[key] = lane.model_copy(update=added)
        return [sums[key] for key in sorted(sums)]

    async def report_interactive_load(self, process: str, loads: Sequence[BackendLoad]) -> None:
        self._rows.enter().interactive[process] = self._rows.clock(), list(loads)

    async def interactive_load(self, max_age: timedelta) -> list[BackendLoad]:
        since, sums = self._rows.clock() - max_age, dict[str, BackendLoad]()
        for reported_at, loads in self._rows.enter().interactive.values():
            for backend, in_flight, mean in loads if reported_at >= since else ():
                known = sums.get(backend, BackendLoad(backend, 0, 0.0))
                sums[backend] = BackendLoad(backend, known.in_flight + in_flight, known.mean + mean)
        return [sums[backend] for backend in sorted(sums)]

    async def report_interactive_rates(self, process: str, rates: Sequence[InteractiveRate]) -> None:
        self._rows.enter().interactive_rates[process] = self._rows.clock(), list(rates)

    async def interactive_rates(self, max_age: timedelta, *, except_for: str = "") -> list[InteractiveRate]:
        since, sums = self._rows.clock() - max_age, dict[tuple[bool, str], InteractiveRate]()
        for process, (reported_at, rates) in self._rows.enter().interactive_rates.items():
            for each in rates if reported_at >= since and process != except_for else ():
                key = each.of_tenant, each.name
                known = sums.get(key, InteractiveRate(*key, 0.0, 0.0, processes=0))
                requests, tokens = known.requests + each.requests, known.tokens + each.tokens
                sums[key] = InteractiveRate(*key, requests, tokens, known.processes + 1)
        return [sums[key] for key in sorted(sums)]
