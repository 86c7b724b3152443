"""Compares the clocks of an installation's machines and services."""

from datetime import datetime

from batchwright.starter.diagnostics.findings import Finding, ok, warning

_WARNING_SECONDS = 5.0  # not less, because a Date header has whole seconds


def compare_clocks(name: str, theirs: datetime, *, asked: datetime, answered: datetime) -> Finding:
    """Compare the clock of this machine with the clock of another machine or service.

    If the clocks differ by 5 s or more, return a warning; otherwise a finding of the level OK. A request was
    sent to read the other clock. The duration of this request does not count as a difference.

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
