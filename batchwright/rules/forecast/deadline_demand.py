"""Compute how many lines have a deadline soon, and how fast lines must get results to meet all deadlines."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

HORIZONS = {"1h": 3600.0, "6h": 6 * 3600.0, "24h": 24 * 3600.0}  # seconds
# A worker that starts now has an effect after about this time. Without a minimum, the last line of a batch
# would need any number of workers in the last second of its window.
_SHORTEST_SECONDS = 60.0


@dataclass(frozen=True)
class DueCount:
    """The number of lines without a result that have the same deadline, and the seconds until then."""

    seconds_left: float
    lines: int


def lines_within(due: Iterable[DueCount], horizon_seconds: float) -> int:
    """Return the number of lines without a result whose deadline is within the next `horizon_seconds`.

    Lines whose deadline has passed do not count, because they are no longer sent.
    """
    return sum(each.lines for each in due if 0 < each.seconds_left <= horizon_seconds)


def required_rate(due: Sequence[DueCount]) -> float:
    """Return the lowest constant rate, in lines per second, at which no line misses its deadline.

    Each deadline needs a certain rate: the number of lines that must have a result by then, divided by the
    time until the deadline. The result is the highest of these rates. This rate is sufficient if lines are
    sent in the order of their deadlines.

    A deadline within the next minute counts as if it were in a minute. Lines whose deadline has passed do not
    count.
    """
    rate, lines = 0.0, 0
    for each in sorted(due, key=lambda each: each.seconds_left):
        if each.seconds_left > 0:
            lines += each.lines
            rate = max(rate, lines / max(each.seconds_left, _SHORTEST_SECONDS))
    return rate
