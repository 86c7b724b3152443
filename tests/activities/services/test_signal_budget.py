"""Number of signals that a process, and all processes together, may send to the workflow of one batch."""

from datetime import UTC, datetime, timedelta

import pytest

from batchwright.activities.services import signal_budget
from batchwright.activities.services.signal_budget import SignalBudget, max_events

DAY = 86_400.0


class Clock:
    def __init__(self) -> None:
        self.now = 5000.0

    def __call__(self) -> float:
        return self.now


def signals(budget: SignalBudget, clock: Clock, seconds: float, every: float) -> int:
    """Request permission for a signal every `every` seconds, for `seconds` seconds in total.

    Return how many of these signals the budget allows.
    """
    sent = 0
    for _ in range(round(seconds / every)):
        sent += budget.take("a")
        clock.now += every
    return sent


def test_twenty_signals_may_be_sent_at_once_and_the_next_one_a_minute_later() -> None:
    clock = Clock()
    budget = SignalBudget(clock)
    assert [budget.take("a") for _ in range(21)] == [True] * 20 + [False]
    clock.now += 59.9
    assert not budget.take("a")
    clock.now += 0.1
    assert budget.take("a")
    assert not budget.take("a")


def test_each_batch_has_a_budget_of_its_own() -> None:
    budget = SignalBudget(Clock())
    assert [budget.take("a") for _ in range(21)].count(True) == 20
    assert budget.take("b")


def test_a_batch_gets_about_120_signals_in_a_day_and_180_in_two_weeks() -> None:
    clock = Clock()
    budget = SignalBudget(clock)
    in_a_day = signals(budget, clock, DAY, every=30.0)
    assert in_a_day == pytest.approx(120, abs=5)
    assert in_a_day + signals(budget, clock, 13 * DAY, every=30.0) == pytest.approx(180, abs=8)


def test_a_batch_that_was_quiet_for_days_has_no_more_than_twenty_signals_at_once() -> None:
    clock = Clock()
    budget = SignalBudget(clock)
    budget.take("a")
    clock.now += 10 * DAY
    assert [budget.take("a") for _ in range(21)] == [True] * 20 + [False]


def test_of_too_many_batches_the_one_with_the_oldest_first_signal_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(signal_budget, "_MAX_BATCHES", 2)
    budget = SignalBudget(Clock())
    for batch in "ab":
        assert [budget.take(batch) for _ in range(21)].count(True) == 20
    assert budget.take("c")
    assert not budget.take("b")
    assert budget.take("a")


@pytest.mark.parametrize(
    ("elapsed", "expected"),
    [
        (timedelta(seconds=-5), 1_000),  # the clock of the worker is behind
        (timedelta(0), 1_000),
        (timedelta(days=7), 3_500),
        (timedelta(days=14), 6_000),
        (timedelta(days=15), 6_000),
    ],
)
def test_a_history_may_get_longer_until_the_deadline(elapsed: timedelta, expected: float) -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    assert max_events(start, start + timedelta(days=14), start + elapsed) == expected


def test_a_workflow_without_a_known_deadline_has_the_room_of_its_start() -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    assert max_events(start, None, start + timedelta(days=14)) == 1_000
    assert max_events(start, start, start + timedelta(days=14)) == 6_000
