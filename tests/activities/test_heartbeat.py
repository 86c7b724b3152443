"""Heartbeats are sent as long as the work lasts, and end with it."""

import asyncio
import dataclasses
from datetime import timedelta

from temporalio.testing import ActivityEnvironment

from batchwright.activities.heartbeat import heartbeating


def environment(
    heartbeat_timeout: timedelta | None, attempt: int = 1
) -> tuple[ActivityEnvironment, "asyncio.Queue[None]"]:
    """Return an activity environment, and a queue that gets an item for each of its heartbeats."""
    beats: asyncio.Queue[None] = asyncio.Queue()
    surroundings = ActivityEnvironment()
    surroundings.info = dataclasses.replace(
        surroundings.info, heartbeat_timeout=heartbeat_timeout, attempt=attempt
    )
    surroundings.on_heartbeat = lambda *_: beats.put_nowait(None)
    return surroundings, beats


async def test_heartbeats_are_sent_while_the_work_continues() -> None:
    surroundings, beats = environment(timedelta(milliseconds=3))

    async def work() -> int:
        async with heartbeating():
            return len([await beats.get() for _ in range(3)])

    assert await surroundings.run(work) == 3


async def test_short_work_sends_a_heartbeat_only_after_an_earlier_attempt() -> None:
    async def work() -> None:
        async with heartbeating():
            for _ in range(10):
                await asyncio.sleep(0)

    first, of_the_first = environment(timedelta(hours=1))
    second, of_the_second = environment(timedelta(hours=1), attempt=2)
    await first.run(work)
    await second.run(work)
    assert (of_the_first.qsize(), of_the_second.qsize()) == (0, 1)


async def test_no_heartbeat_is_sent_after_the_work_has_ended() -> None:
    surroundings, _ = environment(timedelta(seconds=30))

    async def work() -> set[asyncio.Task[object]]:
        before = asyncio.all_tasks()
        async with heartbeating():
            assert len(asyncio.all_tasks() - before) == 1
        return asyncio.all_tasks() - before

    assert await surroundings.run(work) == set()


async def test_an_activity_without_a_heartbeat_timeout_sends_no_heartbeats() -> None:
    surroundings, beats = environment(None)

    async def work() -> None:
        async with heartbeating():
            await asyncio.sleep(0)

    await surroundings.run(work)
    assert beats.empty()
