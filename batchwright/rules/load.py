"""What ends of requests say about how busy a backend is, and what a limit makes of it."""

from dataclasses import dataclass
from enum import StrEnum


class Signal(StrEnum):
    ANSWERED = "answered"
    REFUSED = "refused"  # busy, overloaded, away
    TIMED_OUT = "timed_out"
    NOTHING = "nothing"  # says nothing about how busy it is


class Change(StrEnum):
    """Why a limit changed."""

    REFUSED = "refused"
    TIMED_OUT = "timed_out"
    SLOW = "slow"
    LESS_TRIED = "less_tried"
    MORE_TRIED = "more_tried"
    TRIED_IN_VAIN = "tried_in_vain"  # back to what it was before a trial
    RECOVERED = "recovered"  # on the way to where it was good


@dataclass(frozen=True, slots=True)
class Bounds:
    """`tolerance` is how many times slower than usual answers may get before less is tried."""

    floor: int = 1
    ceiling: int = 100
    tolerance: float = 1.5


@dataclass(slots=True)
class Window:
    """What was seen since `since`: the levels of answers, and the most in flight."""

    since: float
    answers: float = 0.0
    levels: float = 0.0
    peak: int = 0

    @property
    def level(self) -> float:
        return self.levels / self.answers


@dataclass(slots=True)
class Trial:
    """Before it the limit was `limit`, `used` were in flight, and answers were at `level`."""

    limit: float
    used: float
    level: float
    change: Change
    in_vain: int = 0
