"""Quarantine for lines that crash workers: find them, send them one at a time, fail them after 3 crashes.

After two crashes in a row, a slice stores which lines it is about to send. If its worker crashes again, these
lines are quarantined. A quarantined line is sent while no other line of the slice is in flight, and only one
in the whole process at a time.
"""

from collections.abc import Sequence
from typing import NamedTuple

from batchwright.contracts.execution import RELEASED, SliceResult

CRASHES_BEFORE_TRACKING = 2  # crashes in a row: a single one may have any cause
MAX_LINE_CRASHES = 3  # crashes while the line was in flight, the last two of them while it was alone
TRACKED_BATCH_SIZE = 16  # lines that a tracking slice records together, and has in flight at most


class AttemptHistory(NamedTuple):
    """How many attempts of a slice have crashed right before this one.

    Attributes:
        attempt: number of this attempt.
        crashed_since: number of the first of the crashed attempts; equal to `attempt` if there is none.
    """

    attempt: int
    crashed_since: int

    @property
    def crashes(self) -> int:
        """Number of attempts that crashed in a row, right before this one."""
        return self.attempt - self.crashed_since


def attempt_history(attempt: int, details: Sequence[object]) -> AttemptHistory:
    """Return the crash history of a slice, from the last heartbeat details of its previous attempts.

    Args:
        attempt: number of the attempt that starts now.
        details: the last heartbeat details. They contain RELEASED if the last attempt ended by itself instead
            of crashing.
    """
    last = SliceResult()
    for one in details:
        if isinstance(one, dict):
            last = SliceResult.model_validate(one)
    if RELEASED in details:
        return AttemptHistory(attempt, last.attempt + 1 if last.attempt else attempt)
    return AttemptHistory(attempt, last.crashed_since or 1)


class CrashQuarantine:
    """Crash tracking of one attempt of a slice.

    Attributes:
        is_tracking: True if lines have to be recorded before they are sent.
        marker: names this attempt in the records of lines that it is about to send.
        previous_marker: names the previous attempt; empty if it did not crash.
    """

    def __init__(self, history: AttemptHistory, generation: int) -> None:
        self.history, self.is_tracking = history, history.crashes >= CRASHES_BEFORE_TRACKING
        self.marker = f"{generation}/{history.attempt}"
        self.previous_marker = f"{generation}/{history.attempt - 1}" if history.crashes else ""
