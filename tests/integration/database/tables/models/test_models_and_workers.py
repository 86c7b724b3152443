"""Served models and workers.

The fixture `any_database` runs each test in memory and on PostgreSQL.
"""

import asyncio
from datetime import timedelta

from batchwright.contracts.model_registry.stored_models import ServedModel
from batchwright.database.database import Database
from batchwright.database.records import BackendLoad, InteractiveRate
from batchwright.rules.worker_stats import UpstreamTraffic
from tests.integration.database.rows import START, SetHeartbeatAge, after

ONE, TWO = "http://one", "http://two"
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
OVER_AN_HOUR = HOUR.total_seconds() + 1


async def test_served_models_are_those_that_the_given_backends_listed(any_database: Database) -> None:
    await any_database.models.replace_models(ONE, ["org/b:1", "a"], START)
    await any_database.models.replace_models(TWO, ["a"], after(1))
    await any_database.models.replace_models("http://three", ["c"], after(1))
    assert await any_database.models.served([TWO, ONE]) == [
        ServedModel(name="a", backend_url=ONE, seen_at=START),
        ServedModel(name="a", backend_url=TWO, seen_at=after(1)),
        ServedModel(name="org/b:1", backend_url=ONE, seen_at=START),
    ]
    assert await any_database.models.served([]) == []


async def test_models_that_a_backend_no_longer_lists_are_removed(any_database: Database) -> None:
    await any_database.models.replace_models(ONE, ["a", "b"], START)
    await any_database.models.replace_models(ONE, ["b", "B", "b"], after(1))
    served = [model.name for model in await any_database.models.served([ONE])]
    assert served == ["B", "b"]
    await any_database.models.replace_models(ONE, [], after(2))
    assert await any_database.models.served([ONE]) == []


async def test_concurrent_model_lists_of_workers_do_not_conflict(any_database: Database) -> None:
    names = [f"model-{number}" for number in range(20)]
    notes = (
        any_database.models.replace_models(ONE, names if turn % 2 else names[::-1], START)
        for turn in range(10)
    )
    await asyncio.gather(*notes)
    assert [model.name for model in await any_database.models.served([ONE])] == sorted(names)


async def test_workers_are_alive_as_long_as_they_send_heartbeats(
    any_database: Database, set_heartbeat_age: SetHeartbeatAge
) -> None:
    await any_database.workers.record_heartbeat("one:1", {"in_flight": 3.5})
    await any_database.workers.record_heartbeat("two:1", {})
    assert await any_database.workers.count_alive(HOUR) == 2
    await set_heartbeat_age("one:1", OVER_AN_HOUR)
    await set_heartbeat_age("two:1", OVER_AN_HOUR)
    assert await any_database.workers.count_alive(HOUR) == 0
    await any_database.workers.record_heartbeat("two:1", {"in_flight": 1})
    assert await any_database.workers.count_alive(HOUR) == 1


async def test_workers_silent_for_a_day_are_forgotten(
    any_database: Database, set_heartbeat_age: SetHeartbeatAge
) -> None:
    await any_database.workers.record_heartbeat("one:1", {})
    await set_heartbeat_age("one:1", timedelta(days=1, seconds=1).total_seconds())
    await any_database.workers.record_heartbeat("two:1", {})
    assert await any_database.workers.count_alive(timedelta(days=9)) == 1


async def test_the_last_report_of_each_worker_is_kept(
    any_database: Database, set_heartbeat_age: SetHeartbeatAge
) -> None:
    await any_database.workers.record_heartbeat("two:1", {"in_flight": 1})
    await any_database.workers.record_heartbeat("one:1", {"in_flight": 3.5})
    await set_heartbeat_age("one:1", OVER_AN_HOUR)
    await any_database.workers.record_heartbeat("two:1", {"in_flight": 2})
    beats = await any_database.workers.heartbeats(DAY)
    assert [(beat.id, beat.stats) for beat in beats] == [
        ("one:1", {"in_flight": 3.5}),
        ("two:1", {"in_flight": 2}),
    ]
    assert [beat.id for beat in await any_database.workers.heartbeats(HOUR)] == ["two:1"]


async def test_a_heartbeat_has_the_number_of_requests_since_the_start_of_the_worker(
    any_database: Database,
) -> None:
    sent = [UpstreamTraffic(model="m", backend=ONE, requests=3, errors=1, seconds=0.25, pending=2)]
    await any_database.workers.record_heartbeat("one:1", {})
    await any_database.workers.record_heartbeat("one:1", {}, "f", traffic=sent, started_at=START)
    [beat] = await any_database.workers.heartbeats(HOUR)
    assert (beat.started_at, beat.registry) == (START, "f")
    assert await any_database.workers.traffic(HOUR) == sent


async def test_requests_of_live_workers_are_added_up(
    any_database: Database, set_heartbeat_age: SetHeartbeatAge
) -> None:
    def lane(backend: str, requests: int, seconds: float) -> UpstreamTraffic:
        return UpstreamTraffic(
            model="m", backend=backend, requests=requests, errors=1, seconds=seconds, pending=2
        )

    workers = any_database.workers
    await workers.record_heartbeat("dead:1", {}, traffic=[lane(ONE, 99, 9.0)])
    await set_heartbeat_age("dead:1", OVER_AN_HOUR)
    await workers.record_heartbeat("one:1", {}, traffic=[lane(TWO, 5, 0.5), lane(ONE, 3, 0.25)])
    await workers.record_heartbeat("two:1", {}, traffic=[lane(ONE, 10, 1.5)])
    await workers.record_heartbeat("new:1", {})
    assert await workers.traffic(HOUR) == [
        UpstreamTraffic(model="m", backend=ONE, requests=13, errors=2, seconds=1.75, pending=4),
        UpstreamTraffic(model="m", backend=TWO, requests=5, errors=1, seconds=0.5, pending=2),
    ]
    for worker in ("one:1", "two:1", "new:1"):
        await set_heartbeat_age(worker, OVER_AN_HOUR)
    assert await workers.traffic(HOUR) == []


async def test_the_interactive_load_is_added_up_over_processes_and_replaced_by_each(
    any_database: Database,
) -> None:
    workers = any_database.workers
    assert await workers.interactive_load(HOUR) == []
    await workers.report_interactive_load("api:1", [BackendLoad(ONE, 3, 2.5), BackendLoad(TWO, 1, 0.5)])
    await workers.report_interactive_load("api:2", [BackendLoad(TWO, 4, 1.0)])
    assert await workers.interactive_load(HOUR) == [BackendLoad(ONE, 3, 2.5), BackendLoad(TWO, 5, 1.5)]
    await workers.report_interactive_load("api:1", [BackendLoad(TWO, 2, 1.5)])
    assert await workers.interactive_load(HOUR) == [BackendLoad(TWO, 6, 2.5)]
    await workers.report_interactive_load("api:1", [])
    assert await workers.interactive_load(HOUR) == [BackendLoad(TWO, 4, 1.0)]


async def test_what_interactive_calls_use_of_rates_is_added_up_over_processes_and_replaced_by_each(
    any_database: Database,
) -> None:
    workers = any_database.workers
    blue, red, llama = (True, "blue"), (True, "red"), (False, "llama")
    of_one = [InteractiveRate(*blue, 60.0, 900.0), InteractiveRate(*llama, 60.0, 900.0)]
    await workers.report_interactive_rates("api:1", of_one)
    await workers.report_interactive_rates(
        "api:2", [InteractiveRate(*red, 6.0, 8.0), InteractiveRate(*llama, 6.0, 0.5)]
    )
    assert await workers.interactive_rates(HOUR) == [
        InteractiveRate(*llama, 66.0, 900.5, processes=2),
        InteractiveRate(*blue, 60.0, 900.0),
        InteractiveRate(*red, 6.0, 8.0),
    ]
    assert await workers.interactive_rates(HOUR, except_for="api:2") == of_one[::-1]
    await workers.report_interactive_rates("api:1", [InteractiveRate(*llama, 1.0, 2.0)])
    await workers.report_interactive_rates("api:2", [])
    assert await workers.interactive_rates(HOUR) == [InteractiveRate(*llama, 1.0, 2.0)]
