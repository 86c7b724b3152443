"""Decide when a failed delivery of a webhook is attempted again."""

from datetime import timedelta

# After this time, a delivery has failed, and an endpoint that received nothing meanwhile is disabled.
RETRY_PERIOD = timedelta(hours=72)
# The same for a test event, which a person awaits.
TEST_RETRY_PERIOD = timedelta(minutes=5)
# If a delivery is still pending so long after its workflow was started, the workflow is lost. The last
# attempt may take up to an hour.
LOST_AFTER = RETRY_PERIOD + timedelta(hours=1)
_FIRST_PAUSE = timedelta(seconds=5)
_LONGEST_PAUSE = timedelta(hours=8)
_MAX_DOUBLINGS = 20  # far beyond the longest pause


def is_last_attempt(elapsed: timedelta, period: timedelta = RETRY_PERIOD) -> bool:
    """Return True if an attempt to deliver a webhook is the last attempt.

    The last attempt is the attempt that begins at the end of the retry period or later.

    Args:
        elapsed: time from the beginning of the first attempt to the beginning of this attempt.
        period: the retry period, counted from the beginning of the first attempt.
    """
    return elapsed >= period


def pause_after(attempt: int, elapsed: timedelta, period: timedelta = RETRY_PERIOD) -> timedelta:
    """Return the pause before the next attempt to deliver a webhook: 5 s, 10 s, 20 s and so on, up to 8 h.

    If this pause would end after the retry period, the pause ends with the retry period. So the last attempt
    begins exactly `period` after the beginning of the first attempt.

    Args:
        attempt: number of the attempt that failed, from 1.
        elapsed: time from the beginning of the first attempt until now.
        period: the retry period, in which attempts may begin.
    """
    pause = min(_FIRST_PAUSE * 2 ** min(attempt - 1, _MAX_DOUBLINGS), _LONGEST_PAUSE)
    return max(min(pause, period - elapsed), timedelta())
