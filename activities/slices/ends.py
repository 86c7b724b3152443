"""How a turn ends, and what ends it from outside."""

import time
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum, auto

from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from batchwright.contracts.errors import Failure


class End(Enum):
    FINISHED = auto()
    TURN_OVER = auto()
    DEFERRED = auto()  # nothing can be sent now
    CLOSED = auto()  # the window
    STOPPED = auto()  # cancelled or paused
    DRAINED = auto()  # the worker is going away, or an operator holds the activity
    LOST = auto()  # another attempt owns the slice


@dataclass
class Stop:
    """How a turn is ended from outside. What came first stays, but LOST, after which nothing is written."""

    closes_at: float  # on the wall clock
    expiry_grace: float
    cancel_grace: float
    drain_grace: float
    end: End | None = None
    at: float = 0.0  # monotonic

    def set(self, end: End) -> None:
        if self.end is None or end is End.LOST:
            self.end, self.at = end, time.monotonic()

    def now(self) -> End | None:
        if self.end is None and time.time() >= self.closes_at:
            self.set(End.CLOSED)
        return self.end

    def grace_left(self) -> float:
        """Seconds that requests in flight still have."""
        left = self.closes_at + self.expiry_grace - time.time()
        since = time.monotonic() - self.at
        match self.end:
            case End.LOST:
                return 0.0
            case End.STOPPED:
                return min(left, self.cancel_grace - since)
            case End.DRAINED:
                return min(left, self.drain_grace - since)
            case _:
                return left


def next_turn(kind: Failure, message: str, delay_seconds: float) -> ApplicationError:
    """What ends an attempt of which another follows."""
    return ApplicationError(
        message,
        type=kind,
        category=ApplicationErrorCategory.BENIGN,
        next_retry_delay=timedelta(seconds=delay_seconds),
    )
