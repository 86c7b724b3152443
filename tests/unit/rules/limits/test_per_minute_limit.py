"""A rate limit per minute is kept in any 60 seconds, and almost all of it can be used."""

import math
from bisect import bisect_left
from itertools import count, islice

import pytest

from batchwright.rules.limits.per_minute_limit import PerMinuteLimit

_TICK = 0.25  # seconds after which waiting lines look at the rate again


def sends(rate: PerMinuteLimit, seconds: float, cost: float = 1.0) -> list[float]:
    """Return the times at which requests are sent within `seconds` if requests always wait. Each of them
    costs `cost`.
    """
    times: list[float] = []
    for now in islice((number * _TICK for number in count()), math.ceil(seconds / _TICK)):
        while rate.may_send(now):
            rate.charge(cost)
            times.append(now)
    return times


def most_in_a_minute(times: list[float]) -> int:
    return max(bisect_left(times, start + 60) - number for number, start in enumerate(times))


@pytest.mark.parametrize("per_minute", [1, 2, 7, 60, 600, 10_000])
def test_in_no_minute_is_more_sent_than_the_rate_and_little_less(per_minute: int) -> None:
    times = sends(PerMinuteLimit(per_minute, 0.0), 600)
    assert most_in_a_minute(times) <= per_minute
    assert len(times) >= 0.98 * 10 * per_minute


@pytest.mark.parametrize("cost", [3.0, 250.0, 1000.0, 90_000.0])
def test_tokens_exceed_the_rate_by_less_than_one_request(cost: float) -> None:
    times = sends(PerMinuteLimit(60_000, 0.0), 1200, cost)
    assert (most_in_a_minute(times) - 1) * cost < 60_000
    assert len(times) * cost >= 0.98 * 20 * 60_000


def test_a_pause_saves_up_no_more_than_half_a_second() -> None:
    rate = PerMinuteLimit(600, 0.0)
    sends(rate, 60)
    sent = 0
    while rate.may_send(10_000.0):
        rate.charge(1)
        sent += 1
    assert sent == 5


def test_time_counts_once_although_an_earlier_time_comes_in_between() -> None:
    rate = PerMinuteLimit(600, 0.0)
    rate.charge(105)  # 100 below zero, and the rate brings 10 in a second
    for now in (5.0, 0.0, 5.0, 0.0, 9.0):
        assert not rate.may_send(now)
    assert rate.may_send(12.0)


def test_tokens_that_were_charged_too_much_may_be_used() -> None:
    rate = PerMinuteLimit(600, 0.0)
    rate.charge(1000)
    assert not rate.may_send(1.0)
    rate.charge(-900)
    assert not rate.may_send(1.0)
    assert rate.may_send(12.0)


def test_a_changed_rate_holds_at_once_and_keeps_the_debt() -> None:
    rate = PerMinuteLimit(60_000, 0.0)
    rate.change(60, 0.0)
    assert len(sends(rate, 30)) <= 31
    rate = PerMinuteLimit(1, 0.0)
    rate.charge(1)
    rate.change(600, 1.0)
    assert not rate.may_send(1.0)
    assert rate.may_send(1.2)


def test_a_rate_of_zero_blocks_until_it_is_raised() -> None:
    rate = PerMinuteLimit(0, 0.0)
    assert not rate.may_send(1000.0)
    rate.change(60, 1000.0)
    assert rate.may_send(1001.0)
