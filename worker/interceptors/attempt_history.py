"""Count the crashed attempts of an activity, from the details of its heartbeats."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from batchwright.contracts.message import Message
from batchwright.contracts.temporal_payloads.execution import RELEASED

CRASHES_BEFORE_QUARANTINE = 2  # one or two crashes may have any cause
CRASH_MEMORY = timedelta(hours=1)  # an attempt that ends by itself later begins the count again


class StepCrashes(Message):
    """A heartbeat detail of a step (activity): the crashes before the attempt that sends the heartbeat.

    Attributes:
        attempt: number of the attempt that sends the heartbeat.
        crashes: number of earlier attempts that crashed.
        quarantined_crashes: how many of these crashed attempts were running in quarantine.
        is_quarantined: True if the attempt that sends the heartbeat is running in quarantine.
        crash_seen_at: when the attempt after the last crash started, in Unix seconds; 0 without a crash.
    """

    attempt: int
    crashes: int = 0
    quarantined_crashes: int = 0
    is_quarantined: bool = False
    crash_seen_at: float = 0.0


def step_crashes(attempt: int, details: Sequence[object], started_at: datetime) -> StepCrashes:
    """Return how many attempts of a step (activity) have crashed, computed from the step's last heartbeat.

    If an attempt ended without a heartbeat that contains RELEASED, the attempt has crashed. Its worker was
    killed, froze, or could not reach Temporal. All other ends of an attempt do not increase the count.
    Examples are an exception, an unavailable dependency, a wait for a quota, and a shutdown.

    The count begins again at 0 only in these cases:

    - An operator has reset the activity.
    - The previous attempt did not crash, and the last crash was more than `CRASH_MEMORY` ago.

    Args:
        attempt: number of the attempt that starts now.
        details: the details of the last heartbeat.
        started_at: when the attempt that starts now was started, by Temporal's clock.
    """
    now, last = started_at.timestamp(), _last_report(details)
    if last_attempt_crashed(attempt, details):
        if last is None:  # no attempt before this one has sent a heartbeat
            return StepCrashes(attempt=attempt, crashes=attempt - 1, crash_seen_at=now)
        has_crashed = RELEASED not in details
        unreported = attempt - last.attempt - 1  # attempts since then that ended before their first heartbeat
        return StepCrashes(
            attempt=attempt,
            crashes=last.crashes + has_crashed + unreported,
            quarantined_crashes=last.quarantined_crashes + (has_crashed and last.is_quarantined),
            crash_seen_at=now,
        )
    is_reset = last is not None and last.attempt >= attempt  # its attempts are counted from 1 again
    if last is None or is_reset or now - last.crash_seen_at > CRASH_MEMORY.total_seconds():
        return StepCrashes(attempt=attempt)
    return last.model_copy(update={"attempt": attempt, "is_quarantined": False})


def last_attempt_crashed(attempt: int, details: Sequence[object]) -> bool:
    """Return True if the attempt before this one crashed, as the details of the last heartbeat show it."""
    last = _last_report(details)
    if last is None:
        return attempt > 1 and RELEASED not in details
    return last.attempt < attempt - 1 or (last.attempt < attempt and RELEASED not in details)


def _last_report(details: Sequence[object]) -> StepCrashes | None:
    return next((StepCrashes.model_validate(each) for each in details if isinstance(each, dict)), None)
