"""What every database promises of served models and workers; `any_database` runs it on each."""

import asyncio
from datetime import timedelta

from batchwright.database.base import DatabaseLike
from batchwright.database.rows import ServedModel, WorkerBeat
from batchwright.rules.traffic import LaneTraffic
from tests.integration.rows import START, after

ONE, TWO = "http://one", "http://two"


async def test_served_models_are_those_the_asked_backends_listed(any_database: DatabaseLike) -> None:
    await any_database.models.note(ONE, ["org/b:1", "a"], START)
    await any_database.models.note(TWO, ["a"], after(1))
    await any_database.models.note("http://three", ["c"], after(1))
    assert await any_database.models.served([TWO, ONE]) == [
        ServedModel(name="a", backend_url=ONE, seen_at=START),
        ServedModel(name="a", backend_url=TWO, seen_at=after(1)),
        ServedModel(name="org/b:1", backend_url=ONE, seen_at=START),
    ]
    assert await any_database.models.served([]) == []


async def test_what_a_backend_no_longer_lists_is_gone(any_database: DatabaseLike) -> None:
    await any_database.models.note(ONE, ["a", "b"], START)
    await any_database.models.note(ONE, ["b", "B", "b"], after(1))
    served = [model.name for model in await any_database.models.served([ONE])]
    assert served == ["B", "b"]
    await any_database.models.note(ONE, [], after(2))
    assert await any_database.models.served([ONE]) == []


async def test_workers_noting_at_once_do_not_hinder_each_other(any_database: DatabaseLike) -> None:
    names = [f"model-{number}" for number in range(20)]
    notes = (any_database.models.note(ONE, names if turn % 2 else names[::-1], START) for turn in range(10))
    await asyncio.gather(*notes)
    assert [model.name for model in await any_database.models.served([ONE])] == sorted(names)


async def test_workers_are_alive_as_long_as_they_beat(any_database: DatabaseLike) -> None:
    await any_database.workers.beat("one:1", {"in_flight": 3.5}, START)
    await any_database.workers.beat("two:1", {}, after(5))
    await any_database.workers.beat("two:1", {"in_flight": 1}, after(10))
    assert await any_database.workers.alive(START) == 2
    assert await any_database.workers.alive(after(1)) == 1
    assert await any_database.workers.alive(after(11)) == 0


async def test_workers_silent_for_a_day_are_forgotten(any_database: DatabaseLike) -> None:
    await any_database.workers.beat("one:1", {}, START)
    await any_database.workers.beat("two:1", {}, START + timedelta(days=1, seconds=1))
    assert await any_database.workers.alive(START) == 1


async def test_what_each_worker_told_last_is_kept(any_database: DatabaseLike) -> None:
    await any_database.workers.beat("two:1", {"in_flight": 1}, START)
    await any_database.workers.beat("one:1", {"in_flight": 3.5}, START)
    await any_database.workers.beat("two:1", {"in_flight": 2}, after(10))
    assert await any_database.workers.beats(START) == [
        WorkerBeat(id="one:1", stats={"in_flight": 3.5}, beat_at=START),
        WorkerBeat(id="two:1", stats={"in_flight": 2}, beat_at=after(10)),
    ]
    assert [beat.id for beat in await any_database.workers.beats(after(1))] == ["two:1"]


async def test_what_a_worker_has_sent_since_its_start_comes_with_its_beat(any_database: DatabaseLike) -> None:
    sent = [LaneTraffic(model="m", backend=ONE, requests=3, errors=1, seconds=0.25, pending=2)]
    await any_database.workers.beat("one:1", {}, START)
    await any_database.workers.beat("one:1", {}, after(5), "f", traffic=sent, started_at=START)
    [beat] = await any_database.workers.beats(START)
    assert (beat.started_at, beat.registry) == (START, "f")
    assert await any_database.workers.traffic(START) == sent


async def test_what_the_workers_that_are_alive_have_sent_is_added_up(any_database: DatabaseLike) -> None:
    def lane(backend: str, requests: int, seconds: float) -> LaneTraffic:
        return LaneTraffic(
            model="m", backend=backend, requests=requests, errors=1, seconds=seconds, pending=2
        )

    workers = any_database.workers
    await workers.beat("dead:1", {}, START, traffic=[lane(ONE, 99, 9.0)])
    await workers.beat("one:1", {}, after(5), traffic=[lane(TWO, 5, 0.5), lane(ONE, 3, 0.25)])
    await workers.beat("two:1", {}, after(6), traffic=[lane(ONE, 10, 1.5)])
    await workers.beat("new:1", {}, after(6))
    assert await workers.traffic(after(1)) == [
        LaneTraffic(model="m", backend=ONE, requests=13, errors=2, seconds=1.75, pending=4),
        LaneTraffic(model="m", backend=TWO, requests=5, errors=1, seconds=0.5, pending=2),
    ]
    assert await workers.traffic(after(60)) == []
