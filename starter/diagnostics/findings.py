"""Findings (results) of diagnostic checks."""

from enum import StrEnum

from pydantic import BaseModel


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
