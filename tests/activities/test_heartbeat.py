"""Heartbeats: they go on while the work does, and end with it."""

import asyncio
import dataclasses
from datetime import timedelta

from temporalio.testing import ActivityEnvironment

from activities.heartbeat import beating


def environment(
    heartbeat_timeout: timedelta | None, attempt: int = 1
) -> tuple[ActivityEnvironment, "asyncio.Queue[None]"]:
    """An activity's surroundings, and a queue of its beats."""
    beats: asyncio.Queue[None] = asyncio.Queue()
    surroundings = ActivityEnvironment()
    surroundings.info = dataclasses.replace(
        surroundings.info, heartbeat_timeout=heartbeat_timeout, attempt=attempt
    )
    surroundings.on_heartbeat = lambda *_: beats.put_nowait(None)
    return surroundings, beats


async def test_it_beats_while_the_work_goes_on() -> None:
    surroundings, beats = environment(timedelta(milliseconds=3))

    async def work() -> int:
        async with beating():
            return len([await beats.get() for _ in range(3)])

    assert await surroundings.run(work) == 3


async def test_work_that_is_soon_done_beats_only_where_an_attempt_went_before() -> None:
    async def work() -> None:
        async with beating():
            for _ in range(10):
                await asyncio.sleep(0)

    first, of_the_first = environment(timedelta(hours=1))
    second, of_the_second = environment(timedelta(hours=1), attempt=2)
    await first.run(work)
    await second.run(work)
    assert (of_the_first.qsize(), of_the_second.qsize()) == (0, 1)


async def test_nothing_beats_when_the_work_has_ended() -> None:
    surroundings, _ = environment(timedelta(seconds=30))

    async def work() -> set[asyncio.Task[object]]:
        before = asyncio.all_tasks()
        async with beating():
            assert len(asyncio.all_tasks() - before) == 1
        return asyncio.all_tasks() - before

    assert await surroundings.run(work) == set()


async def test_an_activity_without_a_timeout_needs_no_beats() -> None:
    surroundings, beats = environment(None)

    async def work() -> None:
        async with beating():
            await asyncio.sleep(0)

    await surroundings.run(work)
    assert beats.empty()
