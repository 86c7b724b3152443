"""Findings (results) of diagnostic checks."""

from datetime import datetime
from enum import StrEnum

from pydantic import BaseModel

_WARNING_SECONDS = 5.0  # not less, because a Date header has whole seconds


class Level(StrEnum):
    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


class Finding(BaseModel):
    """The result of one check of `batchwright doctor`.

    Attributes:
        part: part of the installation that was checked, such as "database".
        message: the state of this part, in one sentence.
        remedy: instruction for the user; empty if there is nothing to do.
    """

    part: str
    level: Level
    message: str
    remedy: str = ""


class DiagnosticReport(BaseModel):
    findings: list[Finding]

    @property
    def is_sound(self) -> bool:
        return all(finding.level is not Level.PROBLEM for finding in self.findings)


def ok(part: str, message: str) -> Finding:
    return Finding(part=part, level=Level.OK, message=message)


def warning(part: str, message: str, remedy: str) -> Finding:
    return Finding(part=part, level=Level.WARNING, message=message, remedy=remedy)


def problem(part: str, message: str, remedy: str = "") -> Finding:
    """Return a finding of the level PROBLEM. `remedy` may be empty if `message` already says what to do."""
    return Finding(part=part, level=Level.PROBLEM, message=message, remedy=remedy)


def compare_clocks(name: str, theirs: datetime, *, asked: datetime, answered: datetime) -> Finding:
    """Compare the clock of this machine with the clock of another machine or service.

    Return a warning if the clocks differ by 5 s or more; otherwise a finding of the level OK. The other clock
    was read with a request, whose duration does not count as a difference.

    Args:
        name: name of the other machine or service.
        theirs: time that the other clock showed.
        asked: time of this machine before the request.
        answered: time of this machine after the response.
    """
    ahead, behind = (asked - theirs).total_seconds(), (theirs - answered).total_seconds()
    difference = max(ahead, behind)
    if difference < _WARNING_SECONDS:
        return ok("clock", f"The clock of {name} agrees with ours.")
    side = "ahead of" if ahead > behind else "behind"
    return warning(
        "clock",
        f"Our clock is {difference:.0f} s {side} that of {name}.",
        "Synchronize both with NTP: deadlines and expiry times depend on these clocks.",
    )
