"""The stop signal: which of several reasons counts, and how long requests in flight may take."""

import time

import pytest

from batchwright.activities.execution.stop_signal import StopReason, StopSignal
from batchwright.rules.deadline import Deadline


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
