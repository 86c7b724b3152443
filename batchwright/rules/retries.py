"""What an answer means for its line, and when to ask again (R8).

Attempts   a small budget: the answer may be the request's own fault
Capacity   no budget but time: the backend cannot take the request now, whosever it is
"""

import random
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import StrEnum


class Verdict(StrEnum):
    SUCCESS = "success"
    FINAL = "final"  # asking again would give the same
    ATTEMPT = "attempt"
    CAPACITY = "capacity"
    AUTHENTICATION = "authentication"  # capacity that opens the circuit at once


_ATTEMPT = frozenset({408, 409, 425})
_FINAL = frozenset({501, 505})
_CAPACITY = frozenset({429, 502, 503, 504, *range(520, 530)})
_AUTHENTICATION = frozenset({401, 403})

# The circuit spaces requests to a backend that is away; a line's own wait only keeps it off the very next try.
MAX_CAPACITY_BACKOFF = 5.0


def verdict_of(status_code: int) -> Verdict:
    """The meaning of an HTTP answer, its body apart.

    A redirect is never the line's fault and is not followed: it waits like any missing backend.
    """
    if 200 <= status_code < 300:
        return Verdict.SUCCESS
    if status_code in _AUTHENTICATION:
        return Verdict.AUTHENTICATION
    if status_code in _CAPACITY or status_code < 400:
        return Verdict.CAPACITY
    if status_code in _ATTEMPT or (status_code >= 500 and status_code not in _FINAL):
        return Verdict.ATTEMPT
    return Verdict.FINAL


class Backoff:
    """Waits before asking again, doubling, each shortened by up to half at random."""

    def __init__(self, initial_seconds: float, max_seconds: float, chance: random.Random | None = None) -> None:
        self._initial = initial_seconds
        self._max = max_seconds
        self._chance = chance or random.Random()

    def after_attempt(self, count: int, retry_after: float | None = None) -> float:
        """Seconds to wait after the `count`-th attempt; at least what the backend asked for."""
        return self._wait(count, self._max, retry_after)

    def for_capacity(self, count: int, retry_after: float | None = None) -> float:
        """Seconds to wait after `count` refusals of one line in a row."""
        return self._wait(count, min(self._max, MAX_CAPACITY_BACKOFF), retry_after)

    def _wait(self, count: int, most: float, retry_after: float | None) -> float:
        longest = min(self._initial * 2.0 ** min(count - 1, 30), most)
        wait = longest * (0.5 + self._chance.random() / 2)
        return wait if retry_after is None else max(wait, min(retry_after, self._max))


def retry_after_seconds(value: str | None, now: datetime) -> float | None:
    """A Retry-After header, in seconds from `now`: seconds or an HTTP date (RFC 9110, 10.2.3).

    None where it is absent or says nothing.
    """
    if value is None:
        return None
    text = value.strip()
    if text.isascii() and text.replace(".", "", 1).isdigit():
        return float(text)
    try:
        at = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return max((at - now).total_seconds(), 0.0)
