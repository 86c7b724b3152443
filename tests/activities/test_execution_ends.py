"""How a turn ends: its time, the window, a cancel, a shutdown, a lost slice."""

import asyncio
import time
from collections import Counter
from datetime import UTC, datetime, timedelta

import httpx
import pytest
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from activities.slices.ownership import Word
from batchwright.contracts.errors import Failure
from batchwright.contracts.execution import SliceResult
from batchwright.rules.segments import Kind, Record
from batchwright.storage.base import StorageUnavailable
from tests.activities.execution_house import (
    MODEL,
    House,
    content_of,
    eventually,
    line_of,
    ok,
    plan_slice,
    request,
)
from tests.fakes.waiters import Asked

pytestmark = pytest.mark.usefixtures("skipped_waits")

HELD = "3"


class Holding(House):
    """Answers everything at once, but line `HELD` only when `release` is set."""

    def __init__(self, **settings: object) -> None:
        super().__init__(ok, **settings)
        self.release = asyncio.Event()
        self.answer = self._held

    async def planned(self, lines: int = 6) -> list[int]:
        return await plan_slice(self.storage, [line_of(n) for n in range(lines)])

    async def until_only_the_held_one_is_left(self, lines: int = 6) -> None:
        await eventually(lambda: len(self.sent) == lines and self.tools.permits.used == 1)

    async def _held(self, sent: httpx.Request) -> httpx.Response:
        if content_of(sent) == HELD:
            await self.release.wait()
        return ok(content_of(sent))


async def ended(running: "asyncio.Task[SliceResult]") -> ApplicationError:
    try:
        result = await running
    except ApplicationError as error:
        return error
    raise AssertionError(f"the slice returned {result!r}")


# The turn's time


async def test_a_turn_that_is_over_finishes_what_is_in_flight_and_gives_its_slot_back() -> None:
    house = Holding()
    await plan_slice(house.storage, [line_of(int(HELD)), line_of(4)])
    running = house.start(request(slice_seconds=0))
    await eventually(lambda: house.sent == [HELD])
    house.release.set()
    error = await ended(running)
    assert (error.type, error.category) == (Failure.TURN_OVER, ApplicationErrorCategory.BENIGN)
    assert error.next_retry_delay is not None
    assert error.next_retry_delay >= timedelta(milliseconds=1)
    assert (house.sent, len(await house.settled())) == ([HELD], 1)


async def test_a_slice_that_gets_no_permit_in_a_turns_time_gives_its_slot_back_to_others() -> None:
    house = House(ok, model_in_flight=1)
    await plan_slice(house.storage, [line_of(0)])
    others = Asked(house.tools.permits, MODEL, "other").permit
    error = await house.failure(request())
    assert (error.type, error.category) == (Failure.TURN_OVER, ApplicationErrorCategory.BENIGN)
    assert (house.sent, house.tools.budget.held) == ([], 0)
    others.release()
    house.next_attempt()
    assert (await house.run(request())).completed == 1


async def test_turns_add_up_to_the_whole_slice_with_no_line_asked_twice() -> None:
    house = House(ok, model_in_flight=4)
    await plan_slice(house.storage, [line_of(n) for n in range(30)])
    turns = 1
    while (result := await house.turn(request(slice_seconds=0))) is None:
        house.next_attempt()
        turns += 1
    assert turns > 5
    assert result == SliceResult(finished=True, completed=30)
    assert max(Counter(house.sent).values()) == 1
    assert len(await house.settled()) == 30


async def test_many_turns_do_not_leave_many_segments() -> None:
    house = House(ok, model_in_flight=2)
    await plan_slice(house.storage, [line_of(n) for n in range(40)])
    while await house.turn(request(slice_seconds=0)) is None:
        assert len(await house.segment_names()) <= 8
        house.next_attempt()
    assert len(await house.segment_names()) == 1


async def test_a_storage_that_is_away_in_mid_turn_is_asked_again_and_costs_no_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    house = Holding()
    await house.planned()
    put, failures = house.storage.put, 3

    async def put_later(key: str, data: bytes) -> None:
        nonlocal failures
        if failures:
            failures -= 1
            raise StorageUnavailable("away")
        await put(key, data)

    house.storage.put = put_later
    running = house.start(request())
    await house.until_only_the_held_one_is_left()
    await eventually(lambda: failures == 0 or running.done())
    house.release.set()
    assert await running == SliceResult(finished=True, completed=6)
    assert sorted(house.sent) == [str(n) for n in range(6)]
    assert [record.message for record in caplog.records].count("results cannot be stored") == 1


# The window


async def test_a_closed_window_sends_nothing_and_keeps_what_settled() -> None:
    house = House(ok)
    offsets = await plan_slice(house.storage, [line_of(0), line_of(1)])
    await house.store(Record(Kind.SETTLED, offsets[0], b"{}", True))
    assert await house.run(request(closes_at=datetime.now(UTC))) == SliceResult(completed=1)
    assert house.sent == []


async def test_a_window_that_closes_aborts_what_is_in_flight_after_its_grace() -> None:
    house = Holding()
    await house.planned()
    closes_at = datetime.now(UTC) + timedelta(seconds=5)
    result = await house.run(request(closes_at=closes_at, expiry_grace_seconds=0.1))
    assert result == SliceResult(completed=5)
    assert house.tools.permits.used == 0
    assert len(await house.settled()) == 5


async def test_what_answers_within_the_grace_of_the_window_counts() -> None:
    house = Holding()
    await house.planned()
    closes_at = datetime.now(UTC) + timedelta(seconds=5)
    running = house.start(request(closes_at=closes_at))
    await house.until_only_the_held_one_is_left()
    await eventually(lambda: time.time() > closes_at.timestamp())
    house.release.set()
    assert await running == SliceResult(finished=True, completed=6)


async def test_a_window_that_closes_stops_dispatch() -> None:
    house = Holding(model_in_flight=1)
    await house.planned(lines=10)
    closes_at = datetime.now(UTC) + timedelta(seconds=5)
    result = await house.run(request(closes_at=closes_at, expiry_grace_seconds=0.05))
    assert result == SliceResult(completed=3)
    assert house.sent == ["0", "1", "2", HELD]


# Cancel and pause


async def test_a_cancel_stops_dispatch_and_keeps_what_answers_within_the_grace() -> None:
    house = Holding(model_in_flight=1)
    await house.planned(lines=10)
    running = house.start(request())
    await eventually(lambda: HELD in house.sent)
    house.environment.cancel()
    house.release.set()
    assert await running == SliceResult(completed=4)
    assert len(await house.settled()) == len(house.sent) == 4


async def test_a_cancel_aborts_what_is_in_flight_after_its_grace() -> None:
    house = Holding()
    await house.planned()
    running = house.start(request(cancel_grace_seconds=0.05))
    await house.until_only_the_held_one_is_left()
    house.environment.cancel()
    assert await running == SliceResult(completed=5)
    assert house.tools.permits.used == 0


async def test_a_cancel_heard_from_a_heartbeat_is_one() -> None:
    house = Holding()
    house.server.word = Word.CANCEL
    await house.planned()
    assert await house.run(request(cancel_grace_seconds=0.05)) == SliceResult(
        completed=len(await house.settled())
    )


async def test_a_cancelled_slice_can_be_taken_up_again() -> None:
    house = Holding(model_in_flight=1)
    await house.planned(lines=10)
    running = house.start(request(cancel_grace_seconds=0))
    await eventually(lambda: HELD in house.sent)
    house.environment.cancel()
    await running
    house.next_attempt()
    house.release.set()
    assert await house.run(request(generation=1)) == SliceResult(finished=True, completed=10)
    assert [content for content, times in Counter(house.sent).items() if times > 1] == [HELD]


# Shutdown and ownership


async def test_a_worker_that_goes_finishes_what_is_in_flight_and_hands_the_slice_on() -> None:
    house = Holding(model_in_flight=1)
    await house.planned(lines=10)
    running = house.start(request())
    await eventually(lambda: HELD in house.sent)
    house.environment.worker_shutdown()
    house.release.set()
    error = await ended(running)
    assert (error.type, error.category) == (Failure.TURN_OVER, ApplicationErrorCategory.BENIGN)
    house.next_attempt()
    assert await house.run(request()) == SliceResult(finished=True, completed=10)
    assert max(Counter(house.sent).values()) == 1


async def test_a_worker_that_goes_aborts_what_outlasts_its_drain_and_keeps_the_rest() -> None:
    house = Holding(drain_seconds=0)
    await house.planned()
    running = house.start(request())
    await house.until_only_the_held_one_is_left()
    house.environment.worker_shutdown()
    error = await ended(running)
    assert error.type == Failure.TURN_OVER
    assert len(await house.settled()) == 5


async def test_an_attempt_that_lost_its_slice_writes_nothing_more() -> None:
    house = Holding()
    house.server.word = Word.LOST
    await house.planned(lines=200)
    error = await ended(house.start(request()))
    assert error.type == Failure.OWNERSHIP_LOST
    assert await house.records() == []
    assert (house.tools.permits.used, house.tools.budget.held) == (0, 0)


async def test_a_slice_an_operator_holds_is_given_back_not_ended() -> None:
    house = Holding(drain_seconds=0)
    house.server.word = Word.GIVE_BACK
    await house.planned()
    error = await ended(house.start(request()))
    assert error.type == Failure.TURN_OVER


async def test_the_heartbeats_say_how_far_the_slice_is() -> None:
    house = House(ok)
    (offset, _) = await plan_slice(house.storage, [line_of(0), line_of(1)])
    await house.store(Record(Kind.SETTLED, offset, b"{}", True))
    await house.run(request())
    assert house.server.heard[0].finished is False
