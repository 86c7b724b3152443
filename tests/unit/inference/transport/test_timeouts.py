"""One timer serves all exchanges with the same timeout."""

import asyncio

from batchwright.inference.transport.connection_pool import TimeoutWheel
from tests.clocks import skip_time


def started(deadlines: TimeoutWheel, seconds: float, expired: list[str], name: str) -> asyncio.Event:
    event = asyncio.Event()

    def overdue() -> None:
        expired.append(name)
        event.set()

    deadlines.start(seconds).on_timeout = overdue
    return event


async def test_overdue_requests_are_reported_once_in_start_order() -> None:
    deadlines, expired = TimeoutWheel(), list[str]()
    events = [started(deadlines, 0.01, expired, name) for name in "abc"]
    await asyncio.gather(*(event.wait() for event in events))
    assert expired == ["a", "b", "c"]


async def test_a_shorter_timeout_ends_before_a_longer_one_started_first() -> None:
    deadlines, expired = TimeoutWheel(), list[str]()
    long, short = (started(deadlines, seconds, expired, f"{seconds}") for seconds in (600, 60))
    skip_time(61)
    await short.wait()
    assert expired == ["60"]
    skip_time(600)
    await long.wait()
    assert expired == ["60", "600"]


async def test_an_ended_request_is_never_overdue() -> None:
    deadlines, expired = TimeoutWheel(), list[str]()
    ended = deadlines.start(0.01)
    ended.on_timeout = lambda: expired.append("ended")
    last = started(deadlines, 0.01, expired, "last")
    ended.cancel()
    ended.cancel()
    await last.wait()
    assert expired == ["last"]


async def test_a_timeout_works_again_after_it_was_idle() -> None:
    deadlines, expired = TimeoutWheel(), list[str]()
    await started(deadlines, 0.01, expired, "first").wait()
    await started(deadlines, 0.01, expired, "second").wait()
    assert expired == ["first", "second"]


async def test_requests_started_from_a_timeout_callback_have_a_timeout_too() -> None:
    deadlines, expired = TimeoutWheel(), list[str]()
    ended = asyncio.Event()

    def close_and_start() -> None:
        deadlines.close()
        deadlines.start(0.01).on_timeout = ended.set
        expired.append("closed")

    deadlines.start(0.01).on_timeout = close_and_start
    async with asyncio.timeout(60):
        await ended.wait()
    assert expired == ["closed"]
