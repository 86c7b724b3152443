"""The rate pacer: intervals between requests, the number of requests before a slice ends, and
changed rates.
"""

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchwright.activities.execution.rate_pacer import RatePacer
from batchwright.rules.limits.rate_allocation import Pacing
from tests.fakes.rates import FixedRates

SLACK = 0.021  # seconds by which one send may catch up


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Turn:
    """A sender that sends a line whenever the rate pacer allows it.

    Each check whether it may send is late by a delay that the test gives, as timers are late.
    """

    def __init__(self, rate: Pacing | None) -> None:
        self.rates, self.clock = FixedRates(rate), Clock()
        self.sends: list[float] = []
        self.pace = RatePacer(self.rates, "m", self.clock)

    def send(self, late: float) -> None:
        self.clock.now += self.pace.delay() + late
        assert self.pace.may_send() or self.pace.is_exhausted
        if self.pace.may_send():
            self.sends.append(self.clock.now)
            self.pace.record_send()


LATE = st.lists(st.floats(0, 0.2), min_size=1, max_size=60)


@given(st.floats(0.1, 200), st.integers(1, 40), LATE)
def test_a_turn_sends_at_most_its_number_of_lines(rate: float, most: int, late: list[float]) -> None:
    turn = Turn(Pacing(rate, most))
    for seconds in late:
        turn.send(seconds)
    assert len(turn.sends) == min(most, len(late))
    assert turn.pace.is_exhausted == (len(turn.sends) == most)


@given(st.floats(0.1, 200), LATE)
def test_sends_are_spaced_by_the_interval_of_the_rate(rate: float, late: list[float]) -> None:
    turn = Turn(Pacing(rate, 1000))
    for seconds in late:
        turn.send(seconds)
    for (i, first), (j, second) in combinations(enumerate(turn.sends), 2):
        assert second - first >= (j - i) / rate - SLACK


def test_late_timers_do_not_lower_the_rate() -> None:
    turn = Turn(Pacing(100, 1000))
    for _ in range(200):
        turn.send(late=0.004)
    assert turn.sends[-1] - turn.sends[0] == pytest.approx(1.99, abs=0.01)


def test_without_a_rate_no_send_waits() -> None:
    turn = Turn(None)
    for _ in range(1000):
        turn.send(late=0)
    assert len(turn.sends) == 1000
    assert not turn.pace.is_exhausted


def test_a_rate_set_during_the_turn_ends_it_if_it_has_sent_enough() -> None:
    turn = Turn(None)
    for _ in range(20):
        turn.send(late=0)
    turn.rates.change(Pacing(10, 50))
    assert turn.pace.delay() == pytest.approx(0.1)
    turn.rates.change(Pacing(10, 20))
    assert turn.pace.is_exhausted


def test_a_rate_that_is_lowered_holds_for_the_next_send() -> None:
    turn = Turn(Pacing(10, 50))
    turn.send(late=0)
    turn.rates.change(Pacing(1, 5))
    turn.send(late=0)
    turn.rates.change(Pacing(2, 10))
    turn.send(late=0)
    gaps = [second - first for first, second in pairwise(turn.sends)]
    assert gaps == pytest.approx([1, 0.5])


def test_a_rate_removed_during_the_turn_no_longer_limits_it() -> None:
    turn = Turn(Pacing(10, 1))
    turn.send(late=0)
    assert turn.pace.is_exhausted
    turn.rates.change(None)
    assert turn.pace.may_send()
