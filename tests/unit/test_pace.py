"""A turn's pace: how far apart sends are, after how many it is over, and that it follows changes."""

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activities.slices.pace import Pace
from batchwright.rules.rates import Pacing, pacing

SLACK = 0.021  # seconds by which one send may catch up


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Turn:
    """Sends whenever it may; each look comes late by what the test draws, as timers do."""

    def __init__(self, rate: Pacing | None) -> None:
        self.rate, self.clock = rate, Clock()
        self.sends: list[float] = []
        self.pace = Pace(lambda: self.rate, self.clock)

    def send(self, late: float) -> None:
        self.clock.now += self.pace.wait() + late
        assert self.pace.may_send or self.pace.is_over
        if self.pace.may_send:
            self.sends.append(self.clock.now)
            self.pace.sent()


LATE = st.lists(st.floats(0, 0.2), min_size=1, max_size=60)


@given(st.floats(0.1, 200), st.integers(1, 40), LATE)
def test_a_turn_never_makes_more_sends_than_its_lines(rate: float, most: int, late: list[float]) -> None:
    turn = Turn(pacing(rate, most))
    for seconds in late:
        turn.send(seconds)
    lines = pacing(rate, most).lines
    assert len(turn.sends) == min(lines, len(late))
    assert turn.pace.is_over == (len(turn.sends) == lines)


@given(st.floats(0.1, 200), LATE)
def test_between_any_two_sends_lie_as_many_intervals_less_a_little(rate: float, late: list[float]) -> None:
    turn = Turn(Pacing(rate, 1000))
    for seconds in late:
        turn.send(seconds)
    for (i, first), (j, second) in combinations(enumerate(turn.sends), 2):
        assert second - first >= (j - i) / rate - SLACK


def test_timers_that_come_late_do_not_lower_the_rate() -> None:
    turn = Turn(Pacing(100, 1000))
    for _ in range(200):
        turn.send(late=0.004)
    assert turn.sends[-1] - turn.sends[0] == pytest.approx(1.99, abs=0.01)


def test_without_a_rate_nothing_is_held_back() -> None:
    turn = Turn(None)
    for _ in range(1000):
        turn.send(late=0)
    assert len(turn.sends) == 1000
    assert not turn.pace.is_over


def test_a_rate_that_comes_while_the_turn_runs_ends_it_if_it_has_sent_enough() -> None:
    turn = Turn(None)
    for _ in range(20):
        turn.send(late=0)
    turn.rate = Pacing(10, 50)
    assert turn.pace.wait() == pytest.approx(0.1)
    turn.rate = Pacing(10, 20)
    assert turn.pace.is_over


def test_a_rate_that_is_lowered_holds_for_the_next_send() -> None:
    turn = Turn(Pacing(10, 50))
    turn.send(late=0)
    turn.rate = Pacing(1, 5)
    turn.send(late=0)
    turn.rate = Pacing(2, 10)
    turn.send(late=0)
    gaps = [second - first for first, second in pairwise(turn.sends)]
    assert gaps == pytest.approx([1, 0.5])


def test_a_rate_that_is_taken_away_lets_the_turn_go_on() -> None:
    turn = Turn(Pacing(10, 1))
    turn.send(late=0)
    assert turn.pace.is_over
    turn.rate = None
    assert turn.pace.may_send
