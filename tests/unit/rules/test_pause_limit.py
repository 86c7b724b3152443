"""How often a batch may be paused and resumed."""

from datetime import UTC, datetime, timedelta

import pytest

from batchwright.contracts.temporal_payloads.batch import BatchOrder, BatchPolicy
from batchwright.contracts.terms import Endpoint
from batchwright.rules.pause_limit import (
    FREE_CHANGES,
    allowed_pause_changes,
    change_interval,
    is_overtaken,
    seconds_to_next_pause_change,
)

CREATED = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)


def order(window: timedelta = DAY, patience: timedelta = DAY) -> BatchOrder:
    return BatchOrder(
        batch_id="batch_1",
        tenant="acme",
        input_file_id="file-1",
        endpoint=Endpoint.CHAT_COMPLETIONS,
        completion_window="24h",
        created_at=CREATED,
        deadline=CREATED + window,
        policy=BatchPolicy(finalize_patience_seconds=patience.total_seconds()),
    )


def test_a_new_batch_may_be_changed_some_times_at_once() -> None:
    assert allowed_pause_changes(order(), CREATED) == FREE_CHANGES


def test_each_interval_allows_one_more_change() -> None:
    interval = change_interval(order())
    assert interval == timedelta(seconds=172.8)
    at = CREATED + 3 * interval
    assert allowed_pause_changes(order(), at) == FREE_CHANGES + 3
    assert allowed_pause_changes(order(), at - timedelta(microseconds=1)) == FREE_CHANGES + 2


def test_the_seconds_to_the_next_change_are_enough_for_it() -> None:
    for seconds in (0, 0.5, 172, 172.8, 5000):
        at = CREATED + timedelta(seconds=seconds)
        later = at + timedelta(seconds=seconds_to_next_pause_change(order(), at))
        assert allowed_pause_changes(order(), later) == allowed_pause_changes(order(), at) + 1


@pytest.mark.parametrize(
    "window", [timedelta(hours=1), DAY, 14 * DAY, 44 * DAY], ids=["hour", "day", "two weeks", "start later"]
)
def test_all_changes_until_the_files_must_be_written_stay_far_below_the_limits_of_temporal(
    window: timedelta,
) -> None:
    """Temporal's limits are 10,000 signals and 51,200 history events for each workflow. A signal adds up to
    four events.
    """
    assert allowed_pause_changes(order(window), CREATED + window + DAY) == FREE_CHANGES + 1_000


def test_a_clock_behind_the_creation_allows_the_free_changes() -> None:
    assert allowed_pause_changes(order(), CREATED - DAY) == FREE_CHANGES


def test_a_batch_of_seconds_has_an_interval_of_a_second() -> None:
    assert change_interval(order(timedelta(seconds=5), timedelta(0))) == timedelta(seconds=1)


@pytest.mark.parametrize(
    ("change", "last", "seconds", "expected"),
    [
        (1, 2, 0, True),
        (2, 2, 0, False),
        (2, 1, 0, False),
        (0, 2, 0, False),
        (1, 2, 59, True),
        (1, 2, 60, False),
    ],
)
def test_of_changes_in_the_same_minute_the_one_with_the_greater_number_stays(
    change: int, last: int, seconds: int, expected: bool
) -> None:
    """The database numbers pauses and resumes. A change without a number always has an effect. After a
    restore, the database counts from a lower number.
    """
    assert is_overtaken(change, last, timedelta(seconds=seconds)) is expected
