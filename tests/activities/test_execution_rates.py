"""Turns of a model with a rate: how many sends, how far apart, and where the slice goes on."""

import time
from datetime import timedelta

import httpx
import pytest

from batchwright.contracts.errors import Failure
from batchwright.contracts.execution import SliceResult
from batchwright.rules.rates import Pacing
from tests.activities.execution_house import House, eventually, line_of, ok, plan_slice, request, status
from tests.fakes.rates import FixedRates

FAST = 500.0  # requests/s: a test of milliseconds


def paced(lines: int, rate: float = FAST, **settings: object) -> House:
    house = House(ok, **settings)
    house.tools.rates = FixedRates(Pacing(rate, lines))
    return house


def _first_fails(content: str) -> httpx.Response:
    return status(500) if content == "0" else ok(content)


async def test_a_turn_makes_its_sends_and_hands_the_slice_back_at_once() -> None:
    house = paced(lines=4)
    await plan_slice(house.storage, [line_of(n) for n in range(10)])
    error = await house.failure(request())
    assert (error.type, error.next_retry_delay) == (Failure.TURN_OVER, timedelta(milliseconds=1))
    assert len(house.sent) == len(await house.settled()) == 4
    assert house.told == []


async def test_turn_after_turn_sends_every_line_once() -> None:
    house = paced(lines=4)
    await plan_slice(house.storage, [line_of(n) for n in range(10)])
    counts: list[int] = []
    result = None
    while result is None:
        result = await house.turn(request())
        counts.append(len(house.sent))
        house.next_attempt()
    assert counts == [4, 8, 10]
    assert result == SliceResult(finished=True, completed=10)
    assert house.sent == [str(n) for n in range(10)]


async def test_retries_are_sends_too() -> None:
    house = paced(lines=4)
    house.reply = _first_fails
    await plan_slice(house.storage, [line_of(n) for n in range(6)])
    for _ in range(3):
        before = len(house.sent)
        await house.turn(request())
        assert len(house.sent) - before <= 4
        house.next_attempt()
    assert house.sent.count("0") > 1


async def test_a_slice_of_just_its_turn_is_finished_in_it() -> None:
    house = paced(lines=4)
    await plan_slice(house.storage, [line_of(n) for n in range(4)])
    assert await house.run(request()) == SliceResult(finished=True, completed=4)


async def test_sends_are_spaced_whatever_may_be_in_flight() -> None:
    house = paced(lines=100, rate=50)
    await plan_slice(house.storage, [line_of(n) for n in range(11)])
    began = time.monotonic()
    assert await house.run(request()) == SliceResult(finished=True, completed=11)
    assert time.monotonic() - began >= 10 / 50 - 0.02  # a bound from below: no load makes it fail


async def test_a_rate_that_is_set_while_a_turn_runs_ends_it() -> None:
    house = House(ok, model_in_flight=2)
    rates = house.tools.rates = FixedRates()
    await plan_slice(house.storage, [line_of(n) for n in range(200)])
    running = house.start(request())
    await eventually(lambda: len(house.sent) >= 10)
    rates.pacing = Pacing(FAST, 5)
    sent = len(house.sent)
    with pytest.raises(Exception, match="next turn"):
        await running
    assert len(house.sent) <= sent + 2


async def test_a_rate_that_is_taken_away_lets_the_turn_run_free() -> None:
    house = paced(lines=200, rate=5)
    rates = house.tools.rates
    assert isinstance(rates, FixedRates)
    await plan_slice(house.storage, [line_of(n) for n in range(200)])
    running = house.start(request())
    await eventually(lambda: len(house.sent) == 2)
    rates.pacing = None
    assert await running == SliceResult(finished=True, completed=200)


async def test_a_slice_on_the_wrong_queue_sends_nothing_and_says_where_it_goes_on() -> None:
    house = House(ok)
    house.tools.rates = FixedRates(belongs="dispatch")
    await plan_slice(house.storage, [line_of(0)])
    assert await house.run(request()) == SliceResult(goes_on_at="dispatch")
    assert house.sent == []


@pytest.mark.parametrize(("moves", "seconds"), [(1, 2), (3, 8), (50, 30)])
async def test_a_run_that_moved_before_waits_longer_with_every_move(moves: int, seconds: int) -> None:
    house = House(ok)
    house.tools.rates = FixedRates(belongs="dispatch")
    await plan_slice(house.storage, [line_of(0)])
    error = await house.failure(request(moves=moves))
    assert (error.type, error.next_retry_delay) == (Failure.TURN_OVER, timedelta(seconds=seconds))
    house.next_attempt()
    assert await house.run(request(moves=moves)) == SliceResult(goes_on_at="dispatch")
    house.tools.rates = FixedRates()
    house.next_attempt()
    assert await house.run(request(moves=moves)) == SliceResult(finished=True, completed=1)
