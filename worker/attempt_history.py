"""Heartbeat details with which the attempts of an activity count crashes and unknown exceptions."""

from collections.abc import Sequence

from batchwright.contracts.message import Message
from batchwright.contracts.temporal_payloads.execution import RELEASED

CRASHES_BEFORE_QUARANTINE = 2  # one or two crashes may have any cause
# Heartbeat detail: number of attempts of the step that ended with an unknown exception.
_FAILURE_COUNT_PREFIX = "unexpected failures: "


def previous_failures(details: Sequence[object]) -> int:
    """Return how many earlier attempts of the activity ended with an unknown exception.

    Args:
        details: heartbeat details of the previous attempt, which contain this number if it is not 0.
    """
    counts = [detail.removeprefix(_FAILURE_COUNT_PREFIX) for detail in details if isinstance(detail, str)]
    return max((int(count) for count in counts if count.isdecimal()), default=0)


def failure_count_details(failures: int) -> tuple[str, ...]:
    """Return the heartbeat details that pass the number of failures to the next attempt; empty for 0."""
    return (f"{_FAILURE_COUNT_PREFIX}{failures}",) if failures else ()


class StepCrashes(Message):
    """Heartbeat detail of a step: how many of its attempts had crashed before an attempt.

    Attributes:
        attempt: number of the attempt that sends the heartbeat.
        crashes: number of attempts before it that crashed.
        quarantined_crashes: how many of these were running in quarantine.
        is_quarantined: True if the attempt that sends the heartbeat is running in quarantine.
    """

    attempt: int
    crashes: int = 0
    quarantined_crashes: int = 0
    is_quarantined: bool = False


def step_crashes(attempt: int, details: Sequence[object]) -> StepCrashes:
    """Return how many attempts of a step have crashed, as its last heartbeat shows it.

    An attempt that ended without RELEASED has crashed: its worker was killed, froze, or could not reach
    Temporal. Every other end leaves the count unchanged, because the attempt did not finish its work, so it
    does not show that the step is harmless. Such ends are exceptions, unavailable dependencies, waits for a
    quota, shutdowns and pauses. If an operator resets the activity, the count begins again.

    Args:
        attempt: number of the attempt that starts now.
        details: the details of the last heartbeat.
    """
    last = next((StepCrashes.model_validate(each) for each in details if isinstance(each, dict)), None)
    has_crashed = RELEASED not in details
    if last is None:  # no attempt before this one has sent a heartbeat
        return StepCrashes(attempt=attempt, crashes=attempt - 1 if has_crashed else 0)
    unreported = attempt - last.attempt - 1  # attempts since then that ended before their first heartbeat
    if unreported < 0:  # an operator has reset the activity: its attempts are counted from 1 again
        return StepCrashes(attempt=attempt)
    return StepCrashes(
        attempt=attempt,
        crashes=last.crashes + has_crashed + unreported,
        quarantined_crashes=last.quarantined_crashes + (has_crashed and last.is_quarantined),
    )
