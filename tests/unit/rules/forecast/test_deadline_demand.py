"""The rate at which lines must be sent so that all batches are finished by their deadlines."""

from hypothesis import given
from hypothesis import strategies as st

from batchwright.rules.forecast.deadline_demand import HORIZONS, DueCount, lines_within, required_rate

due_lines = st.lists(
    st.builds(
        DueCount,
        seconds_left=st.floats(60, 14 * 86_400),
        lines=st.integers(1, 1_000_000),
    ),
    min_size=1,
    max_size=20,
)


def missed(due: list[DueCount], rate: float) -> bool:
    """Return True if sending at this rate, with the most urgent lines first, misses a deadline."""
    finished = 0.0
    for each in sorted(due, key=lambda each: each.seconds_left):
        finished += each.lines / rate
        if finished > each.seconds_left * (1 + 1e-9):
            return True
    return False


def test_without_lines_nothing_is_due() -> None:
    assert (lines_within([], 3600), required_rate([])) == (0, 0.0)


def test_lines_are_due_within_each_horizon_that_contains_their_deadline() -> None:
    due = [DueCount(1800, 1), DueCount(3600, 10), DueCount(7200, 100), DueCount(90_000, 1000)]
    assert {name: lines_within(due, seconds) for name, seconds in HORIZONS.items()} == {
        "1h": 11,
        "6h": 111,
        "24h": 111,
    }


def test_a_batch_needs_its_lines_divided_by_its_time() -> None:
    assert required_rate([DueCount(3600, 7200)]) == 2.0


def test_batches_with_the_same_deadline_need_the_sum() -> None:
    assert required_rate([DueCount(100, 100), DueCount(100, 300)]) == 4.0


def test_a_batch_with_much_time_does_not_raise_the_rate_of_an_urgent_one() -> None:
    assert required_rate([DueCount(1000, 3000), DueCount(100_000, 3000)]) == 3.0


def test_work_that_accumulates_before_a_later_deadline_raises_the_rate() -> None:
    assert required_rate([DueCount(1000, 1000), DueCount(2000, 3000)]) == 2.0


def test_lines_after_their_deadline_need_nothing() -> None:
    due = [DueCount(-10, 5000), DueCount(0, 5000)]
    assert (lines_within(due, 3600), required_rate(due)) == (0, 0.0)


def test_a_deadline_within_a_minute_counts_as_one_minute_away() -> None:
    assert required_rate([DueCount(0.001, 60)]) == required_rate([DueCount(60, 60)]) == 1.0


@given(due_lines)
def test_the_required_rate_meets_all_deadlines_and_a_lower_one_does_not(due: list[DueCount]) -> None:
    rate = required_rate(due)
    assert not missed(due, rate)
    assert missed(due, rate * 0.999)


@given(due_lines)
def test_batches_together_need_at_least_the_most_demanding_and_at_most_the_sum(due: list[DueCount]) -> None:
    alone = [required_rate([each]) for each in due]
    assert max(alone) <= required_rate(due) <= sum(alone) * (1 + 1e-9)
