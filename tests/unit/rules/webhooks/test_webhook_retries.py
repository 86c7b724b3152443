"""Times at which a failed webhook delivery is attempted again."""

from datetime import timedelta
from itertools import pairwise

from batchwright.rules.webhooks.webhook_retries import RETRY_PERIOD, is_last_attempt, pause_after


def attempts() -> list[timedelta]:
    """Return the start of each attempt, measured from the first one, if every attempt fails immediately."""
    begins = [timedelta()]
    while not is_last_attempt(begins[-1]):
        begins.append(begins[-1] + pause_after(len(begins), begins[-1]))
    return begins


def test_pauses_double_from_five_seconds_to_eight_hours() -> None:
    begins = attempts()
    pauses = [(later - earlier).total_seconds() for earlier, later in pairwise(begins)]
    assert pauses[:5] == [5, 10, 20, 40, 80]
    assert max(pauses) == 8 * 3600


def test_the_last_attempt_begins_exactly_after_72_hours() -> None:
    assert attempts()[-1] == RETRY_PERIOD == timedelta(hours=72)
    assert len(attempts()) == 22


def test_an_attempt_that_is_overdue_follows_at_once_and_is_the_last() -> None:
    assert pause_after(3, timedelta(hours=80)) == timedelta()
    assert is_last_attempt(timedelta(hours=80))


def test_a_number_of_attempts_without_bound_is_no_error() -> None:
    assert pause_after(100_000, timedelta(hours=1)) == timedelta(hours=8)
