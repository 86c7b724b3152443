"""/v1/stats: totals of all workers for registered models and backends; and `batchwright stats`."""

import json
from datetime import UTC, datetime, timedelta

import httpx

from batchwright.contracts.temporal_payloads.batch import ModelCounts
from batchwright.rules.worker_stats import UpstreamTraffic
from tests.fakes.api import ApiFixture, open_api
from tests.unit.starter.cli import run_now, served

A, B = "http://a:1", "http://b:1"
BACKENDS = [A, B]


async def beat(api: ApiFixture, worker: str, *traffic: UpstreamTraffic, age: timedelta = timedelta()) -> None:
    api.database.rows.clock = lambda: datetime.now(UTC) - age
    await api.database.workers.record_heartbeat(worker, {}, traffic=traffic)
    api.database.rows.clock = lambda: datetime.now(UTC)


def lane(backend: str, requests: int, model: str = "llama", *, open_circuits: int = 0) -> UpstreamTraffic:
    return UpstreamTraffic(
        model=model,
        backend=backend,
        requests=requests,
        errors=1,
        seconds=requests / 4,
        pending=2,
        tokens_per_second=13.5,
        open_circuits=open_circuits,
    )


async def test_statistics_of_live_workers_are_added_up() -> None:
    async with open_api(backends=BACKENDS) as api:
        for url in BACKENDS:
            await api.database.models.replace_models(url, ["llama"], datetime.now(UTC))
        change = {"backends": [{"url": A, "in_flight": 64}, {"url": B}]}
        await api.http.put("/admin/models/llama", json=change)
        batch = await api.create()
        lines = ModelCounts(model="llama", lines=9)
        await api.database.batches.start(
            "default", batch.id, total=9, models=[lines], at=datetime.now(UTC), unserved=0, completed=2
        )
        await beat(api, "one:1", lane(A, 10, open_circuits=1), lane(B, 2))
        await beat(api, "two:1", lane(A, 30), lane("http://gone", 3, "gone"))
        await beat(api, "dead:1", lane(A, 100), age=timedelta(minutes=1))
        answer = (await api.http.get("/v1/stats")).json()
    assert answer.pop("uptime_seconds") >= 0
    assert answer == {
        "object": "stats",
        "workers": 2,
        "requests": {"total": 45, "success": 41, "errors": 4},
        "backends": [
            {"id": A, "in_flight": 64, "requests": 40, "average_latency_ms": 250.0, "pending": 4},
            {"id": B, "in_flight": None, "requests": 2, "average_latency_ms": 250.0, "pending": 2},
        ],
        "models": [
            {
                "name": "llama",
                "lines_left": 9,
                "requests": 42,
                "average_duration_ms": 250.0,
                "tokens_per_second": 40.5,
            }
        ],
        "open_circuits": [{"model": "llama", "backend": A, "workers": 1}],
    }


async def test_without_workers_all_statistics_are_zero() -> None:
    async with open_api() as api:
        answer = (await api.http.get("/v1/stats")).json()
    assert (answer["workers"], answer["requests"]["total"], answer["backends"]) == (0, 0, [])


def test_the_stats_command_shows_the_statistics() -> None:
    with served() as cli:
        run_now(beat(cli.api, "one:1", lane(A, 1_200)))
        shown = cli.run("stats")
        found = json.loads(cli.run("stats", "--json").stdout)
    assert shown.exit_code == 0
    assert "1,200 requests, 1 of them failed; 1 worker\n" in shown.stdout
    assert found["requests"]["total"] == 1_200


def test_a_backend_without_requests_has_no_average() -> None:
    with served() as cli:
        httpx.put(f"{cli.url}/admin/models/mine", json={"backends": [{"url": A}]}).raise_for_status()
        run_now(beat(cli.api, "one:1", UpstreamTraffic(model="mine", backend=A, pending=1)))
        rows = cli.run("stats").stdout.splitlines()
    assert [row.split() for row in rows if A in row] == [[A, "0", "-", "1"]]
