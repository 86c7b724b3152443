"""What a check found, and how clocks compare."""

from datetime import datetime
from enum import StrEnum

from pydantic import BaseModel

_WARNING_SECONDS = 5.0  # a Date header has whole seconds, and an answer takes its time


class Level(StrEnum):
    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


class Finding(BaseModel):
    """Of one part: a sentence, and what to do about it where something is to be done."""

    part: str
    level: Level
    message: str
    remedy: str = ""


class Report(BaseModel):
    findings: list[Finding]

    @property
    def is_sound(self) -> bool:
        return all(finding.level is not Level.PROBLEM for finding in self.findings)


def ok(part: str, message: str) -> Finding:
    return Finding(part=part, level=Level.OK, message=message)


def warning(part: str, message: str, remedy: str) -> Finding:
    return Finding(part=part, level=Level.WARNING, message=message, remedy=remedy)


def problem(part: str, message: str, remedy: str = "") -> Finding:
    """The message itself may name the remedy, as those of our errors do."""
    return Finding(part=part, level=Level.PROBLEM, message=message, remedy=remedy)


def clock(whose: str, theirs: datetime, ours: datetime) -> Finding:
    ahead = (ours - theirs).total_seconds()
    if abs(ahead) < _WARNING_SECONDS:
        return ok("clock", f"{whose} has the same time.")
    side = "ahead of" if ahead > 0 else "behind"
    return warning(
        "clock",
        f"Our clock is {abs(ahead):.0f} s {side} that of {whose}.",
        "Have both follow NTP: windows close and files expire by these clocks.",
    )
