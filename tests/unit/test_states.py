"""A batch's states."""

from datetime import UTC, datetime, timedelta

import pytest

from batchwright.contracts.openai import BatchStatus
from batchwright.rules.states import LIVE, Cancel, cancel, cancel_comes_first, shown_status

S = BatchStatus
AT = datetime(2026, 2, 28, 23, 59, tzinfo=UTC)


def test_a_live_state_is_one_that_is_stored_and_no_end() -> None:
    assert {status for status in S if not status.is_terminal} - {S.CANCELLING} == LIVE


def test_a_live_batch_that_was_asked_to_stop_is_shown_as_cancelling() -> None:
    assert {shown_status(status, cancel_requested=True) for status in LIVE} == {S.CANCELLING}


@pytest.mark.parametrize("end", [status for status in S if status.is_terminal])
def test_an_end_is_shown_as_it_is_though_a_cancel_was_asked_for(end: BatchStatus) -> None:
    assert shown_status(end, cancel_requested=True) is end


@pytest.mark.parametrize(
    ("shown", "effect"),
    [
        (S.VALIDATING, Cancel.STOPS),
        (S.IN_PROGRESS, Cancel.STOPS),
        (S.FINALIZING, Cancel.STOPS),
        (S.CANCELLING, Cancel.NOTHING),
        (S.CANCELLED, Cancel.NOTHING),
        (S.COMPLETED, Cancel.REFUSED),
        (S.FAILED, Cancel.REFUSED),
        (S.EXPIRED, Cancel.REFUSED),
    ],
)
def test_what_a_cancel_does_depends_on_what_the_client_sees(shown: BatchStatus, effect: Cancel) -> None:
    assert cancel(shown) is effect


@pytest.mark.parametrize(("minutes", "comes_first"), [(0, True), (9.9, True), (10, False), (11, False)])
def test_an_accepted_cancel_keeps_a_batch_from_completing_for_ten_minutes(
    minutes: float, comes_first: bool
) -> None:
    assert cancel_comes_first(S.COMPLETED, AT, AT + timedelta(minutes=minutes)) is comes_first


def test_a_batch_that_nobody_cancelled_may_complete() -> None:
    assert not cancel_comes_first(S.COMPLETED, None, AT)


@pytest.mark.parametrize("end", [S.FAILED, S.EXPIRED, S.CANCELLED])
def test_an_accepted_cancel_stands_in_the_way_of_no_other_end(end: BatchStatus) -> None:
    assert not cancel_comes_first(end, AT, AT)
