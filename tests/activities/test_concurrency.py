"""Helpers that run coroutines concurrently: two, or a limited number of many.

When a helper returns or raises an exception, none of its coroutines still runs.
"""

import asyncio

import pytest

from batchwright.activities.concurrency import map_concurrently, run_both


class Steps:
    """Coroutines for the tests. `done` records what happened, in order."""

    def __init__(self) -> None:
        self.done: list[str] = []

    async def returns(self, name: str) -> str:
        self.done.append(name)
        return name

    async def fails(self, after: asyncio.Event) -> None:
        await after.wait()
        raise ValueError("broken")

    async def waits(self, started: asyncio.Event) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.shield(asyncio.sleep(0))
            self.done.append("cleaned up")


async def test_both_results_are_returned() -> None:
    steps = Steps()
    assert await run_both(steps.returns("one"), steps.returns("two")) == ("one", "two")


async def test_a_failure_ends_the_other_before_it_is_raised_as_it_is() -> None:
    steps, started = Steps(), asyncio.Event()
    with pytest.raises(ValueError, match="broken"):
        await run_both(steps.fails(started), steps.waits(started))
    assert steps.done == ["cleaned up"]


async def test_a_failure_keeps_its_cause() -> None:
    cause = OSError("disk")

    async def fails() -> None:
        raise ValueError("broken") from cause

    for call in (
        run_both(fails(), asyncio.sleep(0)),
        map_concurrently(lambda _: fails(), [1], at_once=1),
    ):
        with pytest.raises(ValueError, match="broken") as caught:
            await call
        assert caught.value.__cause__ is cause


async def test_a_cancel_ends_both() -> None:
    steps, first, second = Steps(), asyncio.Event(), asyncio.Event()
    both = asyncio.create_task(run_both(steps.waits(first), steps.waits(second)))
    await first.wait()
    await second.wait()
    both.cancel()
    with pytest.raises(asyncio.CancelledError):
        await both
    assert steps.done == ["cleaned up", "cleaned up"]


async def test_a_few_of_many_run_at_once_and_all_results_are_in_order() -> None:
    running: list[int] = []
    most = 0

    async def call(number: int) -> int:
        nonlocal most
        running.append(number)
        most = max(most, len(running))
        for _ in range(10 - number):  # the first ends last
            await asyncio.sleep(0)
        running.remove(number)
        return -number

    assert await map_concurrently(call, range(5), at_once=2) == [0, -1, -2, -3, -4]
    assert most == 2


async def test_the_first_of_many_that_fails_ends_the_others() -> None:
    steps, started = Steps(), asyncio.Event()

    async def call(is_broken: bool) -> None:
        await (steps.fails(started) if is_broken else steps.waits(started))

    with pytest.raises(ValueError, match="broken"):
        await map_concurrently(call, [False, True], at_once=2)
    assert steps.done == ["cleaned up"]
