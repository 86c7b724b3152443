"""Quarantine: find lines that crash workers, send them one at a time, and fail them after 3 crashes.

After two crashes in a row, a slice stores which lines it is about to send. If its worker crashes again, these
lines are quarantined. A quarantined line is sent only while no other line of its slice is in flight. No other
quarantined line or quarantined step (activity such as ingestion) of the process may run at the same time.

An attempt may also crash before it sends a line, while it prepares the slice: it reads stored results and
lines. After two crashes in a row, preparations are quarantined, too. After three crashes during a quarantined
preparation, the slice fails.
"""

from collections.abc import Sequence
from typing import NamedTuple

from batchwright.contracts.temporal_payloads.execution import RELEASED, SliceResult

CRASHES_BEFORE_TRACKING = 2  # number of crashes in a row; a single crash may have any cause
MAX_LINE_CRASHES = 3  # crashes while the line was in flight; during the last two it was alone
MAX_PREPARATION_CRASHES = 3  # crashes during a quarantined preparation
TRACKED_BATCH_SIZE = 16  # while tracking: number of lines recorded together, and maximum in flight


class AttemptHistory(NamedTuple):
    """How many attempts of a slice crashed, one after the other, right before the current attempt.

    Attributes:
        attempt: number of the current attempt.
        crashed_since: number of the first of the crashed attempts; equal to `attempt` if no attempt crashed.
        preparation_crashes: how many of the crashed attempts crashed during a quarantined preparation.
    """

    attempt: int
    crashed_since: int
    preparation_crashes: int = 0

    @property
    def crashes(self) -> int:
        """Number of attempts that crashed one after the other, right before the current attempt."""
        return self.attempt - self.crashed_since


def attempt_history(attempt: int, details: Sequence[object]) -> AttemptHistory:
    """Return how many attempts of a slice crashed right before this one, as its last heartbeat shows it.

    Args:
        attempt: number of the attempt that starts now.
        details: the details of the last heartbeat. They contain RELEASED if the attempt that sent this
            heartbeat ended without a crash.
    """
    last = SliceResult()
    for one in details:
        if isinstance(one, dict):
            last = SliceResult.model_validate(one)
    if RELEASED in details:
        return AttemptHistory(attempt, last.attempt + 1 if last.attempt else attempt)
    return AttemptHistory(attempt, last.crashed_since or 1, last.preparation_crashes + last.is_preparing)


class CrashQuarantine:
    """Decides if an attempt of a slice must record which lines it sends, because earlier attempts crashed.

    A marker is a text that names an attempt. If lines are recorded, the marker of the attempt is stored with
    each line that it is about to send. After a crash, the next attempt finds these lines by this marker.

    Attributes:
        history: the attempts that crashed right before this attempt.
        is_tracking: True if lines must be recorded before they are sent.
        marker: marker of this attempt.
        previous_marker: marker of the previous attempt; empty if that attempt did not crash.
        is_preparing: True during a quarantined preparation.
    """

    def __init__(self, history: AttemptHistory, generation: int) -> None:
        self.history, self.is_tracking = history, history.crashes >= CRASHES_BEFORE_TRACKING
        self.is_preparing = False
        self.marker = f"{generation}/{history.attempt}"
        self.previous_marker = f"{generation}/{history.attempt - 1}" if history.crashes else ""
