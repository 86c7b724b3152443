"""One timer for all exchanges of a patience."""

import asyncio

from batchwright.inference.deadlines import Deadlines


def started(deadlines: Deadlines, seconds: float, told: list[str], name: str) -> asyncio.Event:
    event = asyncio.Event()

    def overdue() -> None:
        told.append(name)
        event.set()

    deadlines.start(seconds).overdue = overdue
    return event


async def test_what_is_overdue_is_told_once_in_the_order_it_began() -> None:
    deadlines, told = Deadlines(), list[str]()
    events = [started(deadlines, 0.01, told, name) for name in "abc"]
    await asyncio.gather(*(event.wait() for event in events))
    assert told == ["a", "b", "c"]


async def test_a_shorter_patience_ends_before_a_longer_one_begun_first() -> None:
    deadlines, told = Deadlines(), list[str]()
    long, short = (started(deadlines, seconds, told, f"{seconds}") for seconds in (0.1, 0.01))
    await asyncio.gather(long.wait(), short.wait())
    assert told == ["0.01", "0.1"]


async def test_what_has_ended_is_never_overdue() -> None:
    deadlines, told = Deadlines(), list[str]()
    ended = deadlines.start(0.01)
    ended.overdue = lambda: told.append("ended")
    last = started(deadlines, 0.01, told, "last")
    ended.end()
    ended.end()
    await last.wait()
    assert told == ["last"]


async def test_a_patience_serves_again_after_it_was_idle() -> None:
    deadlines, told = Deadlines(), list[str]()
    await started(deadlines, 0.01, told, "first").wait()
    await started(deadlines, 0.01, told, "second").wait()
    assert told == ["first", "second"]
