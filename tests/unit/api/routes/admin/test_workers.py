"""/admin/workers: which workers are alive, and what they do."""

from datetime import UTC, datetime, timedelta

from batchwright.contracts.api_objects.operator import WorkerList
from batchwright.rules.worker_stats import polled_queue_stats, running_slice_stats
from tests.fakes.api import open_api, read

STARTED = datetime(2026, 11, 21, tzinfo=UTC)


async def test_live_workers_are_shown_with_their_queues_and_slices() -> None:
    async with open_api() as api:
        stats = {
            "in_flight": 7.0,
            **polled_queue_stats(["inference.m", "control"]),
            **running_slice_stats({("batch_1", "m"): 2, ("batch_1", "a model"): 1, ("batch_2", "m"): 1}),
        }
        api.database.rows.clock = lambda: datetime.now(UTC) - timedelta(minutes=1)
        await api.database.workers.record_heartbeat("dead:1", {})
        api.database.rows.clock = lambda: datetime.now(UTC)
        await api.database.workers.record_heartbeat("one:1", stats, "abc", started_at=STARTED)
        [worker] = read(await api.http.get("/admin/workers"), WorkerList).data
    assert (worker.id, worker.registry, worker.started_at) == ("one:1", "abc", int(STARTED.timestamp()))
    assert (worker.in_flight, worker.slices, worker.batches) == (7, 4, 2)
    assert worker.queues == ["control", "inference.m"]
