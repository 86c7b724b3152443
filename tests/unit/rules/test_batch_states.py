"""The statuses of a batch that are stored and that are shown, and the effect of a cancel."""

from datetime import UTC, datetime, timedelta

import pytest

from batchwright.contracts.terms import BatchStatus
from batchwright.rules.batch_states import (
    LIVE_STATES,
    CancelEffect,
    cancel_effect,
    cancel_takes_precedence,
    visible_status,
)

S = BatchStatus
AT = datetime(2026, 2, 28, 23, 59, tzinfo=UTC)


def test_live_states_are_the_stored_states_without_the_ends() -> None:
    assert {status for status in S if not status.is_terminal} - {S.CANCELLING} == LIVE_STATES


def test_a_live_batch_with_a_requested_cancel_is_shown_as_cancelling() -> None:
    assert {visible_status(status, cancel_requested=True) for status in LIVE_STATES} == {S.CANCELLING}


@pytest.mark.parametrize("end", [status for status in S if status.is_terminal])
def test_an_end_is_shown_unchanged_after_a_cancel_was_requested(end: BatchStatus) -> None:
    assert visible_status(end, cancel_requested=True) is end


@pytest.mark.parametrize(
    ("shown", "effect"),
    [
        (S.VALIDATING, CancelEffect.STOPS),
        (S.IN_PROGRESS, CancelEffect.STOPS),
        (S.FINALIZING, CancelEffect.STOPS),
        (S.CANCELLING, CancelEffect.NOTHING),
        (S.CANCELLED, CancelEffect.NOTHING),
        (S.COMPLETED, CancelEffect.REFUSED),
        (S.FAILED, CancelEffect.REFUSED),
        (S.EXPIRED, CancelEffect.REFUSED),
    ],
)
def test_what_a_cancel_does_depends_on_what_the_client_sees(shown: BatchStatus, effect: CancelEffect) -> None:
    assert cancel_effect(shown) is effect


@pytest.mark.parametrize(("minutes", "comes_first"), [(0, True), (9.9, True), (10, False), (11, False)])
def test_an_accepted_cancel_prevents_completion_for_ten_minutes(minutes: float, comes_first: bool) -> None:
    assert cancel_takes_precedence(S.COMPLETED, AT, AT + timedelta(minutes=minutes)) is comes_first


def test_a_batch_that_was_not_cancelled_may_complete() -> None:
    assert not cancel_takes_precedence(S.COMPLETED, None, AT)


@pytest.mark.parametrize("end", [S.FAILED, S.EXPIRED, S.CANCELLED])
def test_an_accepted_cancel_prevents_no_other_end(end: BatchStatus) -> None:
    assert not cancel_takes_precedence(end, AT, AT)
