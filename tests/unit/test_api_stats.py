"""/v1/stats: over all workers, of what is registered; and `batchwright stats`."""

import json
from datetime import UTC, datetime, timedelta

from batchwright.rules.traffic import LaneTraffic
from tests.fakes.api import House, open_house
from tests.unit.cli import run_now, served

A, B = "http://a:1", "http://b:1"
BACKENDS = [A, B]


async def beat(house: House, worker: str, *traffic: LaneTraffic, age: timedelta = timedelta()) -> None:
    await house.database.workers.beat(worker, {}, datetime.now(UTC) - age, traffic=traffic)


def lane(backend: str, requests: int, model: str = "llama") -> LaneTraffic:
    return LaneTraffic(
        model=model, backend=backend, requests=requests, errors=1, seconds=requests / 4, pending=2
    )


async def test_the_living_workers_are_added_up() -> None:
    async with open_house(backends=BACKENDS) as house:
        for url in BACKENDS:
            await house.database.models.note(url, ["llama"], datetime.now(UTC))
        await beat(house, "one:1", lane(A, 10), lane(B, 2))
        await beat(house, "two:1", lane(A, 30), lane("http://gone", 3, "gone"))
        await beat(house, "dead:1", lane(A, 100), age=timedelta(minutes=1))
        answer = (await house.http.get("/v1/stats")).json()
    assert answer.pop("uptime_seconds") >= 0
    assert answer == {
        "object": "stats",
        "workers": 2,
        "requests": {"total": 45, "success": 41, "errors": 4},
        "backends": [
            {"id": A, "requests": 40, "average_latency_ms": 250.0, "pending": 4},
            {"id": B, "requests": 2, "average_latency_ms": 250.0, "pending": 2},
        ],
        "models": [{"name": "llama", "requests": 42, "average_duration_ms": 250.0}],
    }


async def test_before_any_worker_all_is_nothing() -> None:
    async with open_house() as house:
        answer = (await house.http.get("/v1/stats")).json()
    assert (answer["workers"], answer["requests"]["total"], answer["backends"]) == (0, 0, [])


def test_the_command_line_shows_them() -> None:
    with served() as cli:
        run_now(beat(cli.house, "one:1", lane(A, 1_200)))
        shown = cli.run("stats")
        found = json.loads(cli.run("stats", "--json").stdout)
    assert shown.exit_code == 0
    assert "1,200 requests, 1 of them failed; 1 worker\n" in shown.stdout
    assert found["requests"]["total"] == 1_200
