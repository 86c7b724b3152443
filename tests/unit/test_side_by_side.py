"""Two things at once, of which none outlives the other."""

import asyncio

import pytest

from activities.side_by_side import side_by_side


class Steps:
    """What happened, in order."""

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


async def test_both_results_come_back() -> None:
    steps = Steps()
    assert await side_by_side(steps.returns("one"), steps.returns("two")) == ("one", "two")


async def test_a_failure_ends_the_other_before_it_is_raised_as_it_is() -> None:
    steps, started = Steps(), asyncio.Event()
    with pytest.raises(ValueError, match="broken"):
        await side_by_side(steps.fails(started), steps.waits(started))
    assert steps.done == ["cleaned up"]


async def test_a_cancel_ends_both() -> None:
    steps, first, second = Steps(), asyncio.Event(), asyncio.Event()
    both = asyncio.create_task(side_by_side(steps.waits(first), steps.waits(second)))
    await first.wait()
    await second.wait()
    both.cancel()
    with pytest.raises(asyncio.CancelledError):
        await both
    assert steps.done == ["cleaned up", "cleaned up"]
