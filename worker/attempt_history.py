"""Heartbeat details that tell the next attempt of an activity about crashes and unknown exceptions."""

from collections.abc import Sequence

from batchwright.contracts.message import Message
from batchwright.contracts.temporal_payloads.execution import RELEASED

CRASHES_BEFORE_QUARANTINE = 2  # number of crashes in a row; they may have any cause
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
    """Heartbeat detail of a step: how many of its attempts have crashed in a row.

    Attributes:
        attempt: number of the attempt that sends the heartbeat.
        crashes: number of attempts right before it that crashed, which means that they ended with their
            worker.
        quarantined_crashes: how many of these attempts ran in quarantine.
        is_quarantined: True if the attempt that sends the heartbeat runs in quarantine.
    """

    attempt: int
    crashes: int = 0
    quarantined_crashes: int = 0
    is_quarantined: bool = False


def step_crashes(attempt: int, details: Sequence[object]) -> StepCrashes:
    """Return how many attempts of a step crashed right before this one, as its last heartbeat shows it.

    An attempt that ended without a crash resets the count. There is one exception: after an attempt that
    ended with an unknown exception, the count continues, because an input that needs too much memory may
    cause both.

    Args:
        attempt: number of the attempt that starts now.
        details: the details of the last heartbeat.
    """
    last = next((StepCrashes.model_validate(each) for each in details if isinstance(each, dict)), None)
    if last is None:  # no attempt before this one has sent a heartbeat
        return StepCrashes(attempt=attempt, crashes=0 if RELEASED in details else attempt - 1)
    unreported = attempt - last.attempt - 1  # attempts since then that ended before their first heartbeat
    if unreported < 0:  # an operator has reset the activity: its attempts are counted from 1 again
        return StepCrashes(attempt=attempt)
    if RELEASED not in details:
        return StepCrashes(
            attempt=attempt,
            crashes=last.crashes + 1 + unreported,
            quarantined_crashes=last.quarantined_crashes + last.is_quarantined,
        )
    if previous_failures(details):
        return last.model_copy(
            update={"attempt": attempt, "crashes": last.crashes + unreported, "is_quarantined": False}
        )
    return StepCrashes(attempt=attempt, crashes=unreported)
