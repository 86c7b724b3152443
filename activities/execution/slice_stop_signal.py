"""Stop signal of a turn (one attempt of a slice).

The signal says why the turn has to stop, and how long the requests in flight may continue.
"""

import math
import time
from dataclasses import dataclass, field
from enum import Enum, auto

from batchwright.rules.deadline import Deadline


class StopReason(Enum):
    COMPLETED = auto()  # every line is settled
    TURN_EXPIRED = auto()
    DEFERRED = auto()  # no line can be sent now
    DEADLINE = auto()
    OVER_CAP = auto()  # the batch has reached the cap on its cost
    CANCELLED = auto()  # or paused
    SHUTDOWN = auto()  # the worker shuts down, or an operator paused or reset the activity
    LEASE_LOST = auto()  # another attempt has the slice


@dataclass
class StopSignal:
    """The signal that an attempt of a slice (turn) has to stop, with the reason.

    If several reasons are set, the first one counts. Only LEASE_LOST (another attempt runs the slice now)
    replaces an earlier reason.

    Attributes:
        cancel_grace: seconds that requests in flight may still take after a cancel, or after the batch has
            reached the cap on its cost.
        shutdown_grace: seconds that requests in flight may still take after the worker begins to shut down.
        sends_until: lines may be sent until this time, in Unix seconds; minus infinity if a reason is set,
            because no more lines may be sent.
    """

    deadline: Deadline
    cancel_grace: float
    shutdown_grace: float
    sends_until: float = field(init=False)
    is_lease_lost: bool = False
    _reason: StopReason | None = None
    _stopped_at: float = 0.0  # monotonic time

    def __post_init__(self) -> None:
        self.sends_until = self.deadline.at

    def set(self, reason: StopReason) -> None:
        if self._reason is None or reason is StopReason.LEASE_LOST:
            self._reason, self._stopped_at = reason, time.monotonic()
            self.sends_until = -math.inf
            self.is_lease_lost = reason is StopReason.LEASE_LOST

    @property
    def reason(self) -> StopReason | None:
        """Why the attempt of the slice has to stop; None if it may continue."""
        if self._reason is None and self.deadline.passed(time.time()):
            self.set(StopReason.DEADLINE)
        return self._reason

    def grace_remaining(self) -> float:
        """Return for how many seconds requests in flight may continue; 0 or negative if they must end now."""
        remaining = self.deadline.grace_remaining(time.time())
        elapsed = time.monotonic() - self._stopped_at
        match self._reason:
            case StopReason.LEASE_LOST:
                return 0.0
            case StopReason.CANCELLED | StopReason.OVER_CAP:
                return min(remaining, self.cancel_grace - elapsed)
            case StopReason.SHUTDOWN:
                return min(remaining, self.shutdown_grace - elapsed)
            case _:
                return remaining
