"""The stop signal of a slice: which of several reasons counts, and how long requests in flight may take."""

import math
import time

import pytest

from batchwright.activities.execution.slice_stop_signal import StopReason, StopSignal
from batchwright.rules.deadline import Deadline


class Clocks:
    """The wall clock and the monotonic clock of the process. They differ by a constant, as the
    real ones do.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.passed = 0.0
        monkeypatch.setattr(time, "time", lambda: 1_000_000.0 + self.passed)
        monkeypatch.setattr(time, "monotonic", lambda: 50.0 + self.passed)


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    return Clocks(monkeypatch)


def stop_of(closes_in: float, grace: float) -> StopSignal:
    deadline = Deadline(time.time() + closes_in, grace=1)
    return StopSignal(deadline, cancel_grace=grace, shutdown_grace=grace)


@pytest.mark.parametrize("first", [StopReason.CANCELLED, StopReason.SHUTDOWN, StopReason.DEADLINE])
def test_a_lost_slice_overrides_every_other_stop_reason_and_none_overrides_it(first: StopReason) -> None:
    stop = stop_of(closes_in=60, grace=1)
    stop.set(first)
    stop.set(StopReason.LEASE_LOST)
    stop.set(first)
    assert stop.reason is StopReason.LEASE_LOST


@pytest.mark.parametrize("end", [StopReason.CANCELLED, StopReason.SHUTDOWN])
def test_the_grace_of_a_cancel_or_drain_does_not_outlast_the_deadline(end: StopReason) -> None:
    stop = stop_of(closes_in=5, grace=100)
    stop.set(end)
    assert stop.grace_remaining() <= 6


@pytest.mark.parametrize("end", [StopReason.CANCELLED, StopReason.OVER_CAP])
def test_requests_in_flight_have_the_grace_of_a_cancel_at_the_cap_too(end: StopReason) -> None:
    stop = stop_of(closes_in=60, grace=5)
    stop.set(end)
    assert stop.grace_remaining() <= 5


def test_without_a_reason_lines_may_be_sent_until_the_deadline_and_not_after_it(clocks: Clocks) -> None:
    stop = stop_of(closes_in=60, grace=5)
    assert (stop.reason, stop.sends_until) == (None, 1_000_060.0)
    clocks.passed = 59.9
    assert stop.reason is None
    clocks.passed = 60
    assert stop.reason is StopReason.DEADLINE
    assert stop.sends_until == -math.inf


def test_the_first_reason_stays_and_sends_nothing_more(clocks: Clocks) -> None:
    stop = stop_of(closes_in=60, grace=5)
    stop.set(StopReason.CANCELLED)
    stop.set(StopReason.SHUTDOWN)
    clocks.passed = 61
    assert (stop.reason, stop.sends_until, stop.is_lease_lost) == (StopReason.CANCELLED, -math.inf, False)


@pytest.mark.parametrize(
    ("reason", "grace"),
    [
        (StopReason.CANCELLED, 20.0),
        (StopReason.OVER_CAP, 20.0),
        (StopReason.SHUTDOWN, 30.0),
        (StopReason.TURN_EXPIRED, 61.0),
        (StopReason.DEADLINE, 61.0),
    ],
)
def test_each_reason_has_its_grace_which_shrinks_as_time_passes(
    clocks: Clocks, reason: StopReason, grace: float
) -> None:
    stop = StopSignal(Deadline(time.time() + 60, grace=1), cancel_grace=20, shutdown_grace=30)
    clocks.passed = 0.0
    stop.set(reason)
    assert stop.grace_remaining() == grace
    clocks.passed = 4.0
    stop.set(StopReason.SHUTDOWN)  # a later reason does not begin another grace period
    assert stop.grace_remaining() == grace - 4


def test_requests_of_a_slice_that_another_attempt_has_end_at_once(clocks: Clocks) -> None:
    stop = stop_of(closes_in=60, grace=5)
    stop.set(StopReason.CANCELLED)
    stop.set(StopReason.LEASE_LOST)
    assert (stop.is_lease_lost, stop.grace_remaining()) == (True, 0.0)
