"""Which budget an outcome uses, and how long to wait before asking again (R8).

SETTLED    a success, or an error that asking again would not change
ATTEMPT    may be the request's own fault; `max_attempts` of them settle the line
CAPACITY   the backend's trouble: costs time, never attempts
BLOCKED    the backend refuses us (401, 403): like capacity, and opens the circuit at once
"""

import math
import random
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import NamedTuple


class Budget(StrEnum):
    SETTLED = "settled"
    ATTEMPT = "attempt"
    CAPACITY = "capacity"
    BLOCKED = "blocked"


class Category(StrEnum):
    """The categories of S1-R8 that a backend's behaviour can show."""

    NONE = "none"
    AUTHENTICATION = "authentication"
    RATE_LIMIT = "rate_limit"
    TIMEOUT = "timeout"
    TRANSPORT = "transport"
    UPSTREAM_5XX = "upstream_5xx"
    SERVICE_UNAVAILABLE = "service_unavailable"
    INVALID_REQUEST = "invalid_request"
    RESPONSE_SHAPE = "response_shape"
    POLICY = "policy"  # ours, before anything was sent


class Verdict(NamedTuple):
    budget: Budget
    category: Category


MAX_RETRY_AFTER = 300.0  # S1-159
# The circuit spaces requests to a backend that is away; a line's own wait only keeps it off the next try.
MAX_CAPACITY_BACKOFF = 5.0

_FINAL_5XX = frozenset({501, 505})
_CAPACITY_5XX = frozenset({502, 503, 504, *range(520, 530)})
_ATTEMPT_4XX = frozenset({408, 409, 425})

SUCCESS = Verdict(Budget.SETTLED, Category.NONE)
NOT_SENT = Verdict(Budget.CAPACITY, Category.TRANSPORT)
NO_ANSWER_IN_TIME = Verdict(Budget.ATTEMPT, Category.TIMEOUT)
ANSWER_BROKE = Verdict(Budget.ATTEMPT, Category.TRANSPORT)
UNREADABLE = Verdict(Budget.ATTEMPT, Category.RESPONSE_SHAPE)
TOO_LARGE = Verdict(Budget.SETTLED, Category.RESPONSE_SHAPE)
REJECTED = Verdict(Budget.SETTLED, Category.POLICY)
HOOK_FAILED = Verdict(Budget.ATTEMPT, Category.POLICY)
BROKEN_SHARE = Verdict(Budget.SETTLED, Category.RESPONSE_SHAPE)  # of a request that lines shared (S1-224)

_BLOCKED = Verdict(Budget.BLOCKED, Category.AUTHENTICATION)
_RATE_LIMIT = Verdict(Budget.CAPACITY, Category.RATE_LIMIT)
_UNAVAILABLE = Verdict(Budget.CAPACITY, Category.SERVICE_UNAVAILABLE)
_REFUSED = Verdict(Budget.SETTLED, Category.INVALID_REQUEST)


def judge(status: int) -> Verdict:
    """What an HTTP status means for the line, its body apart.

    A redirect is not followed and never the line's fault: something stands between us and the backend.
    """
    if 200 <= status < 300:
        return SUCCESS
    if status in (401, 403):
        return _BLOCKED
    if status == 429:
        return _RATE_LIMIT
    if status in _CAPACITY_5XX or status < 400:
        return _UNAVAILABLE
    if status in _ATTEMPT_4XX:
        return NO_ANSWER_IN_TIME
    if status >= 500 and status not in _FINAL_5XX:
        return Verdict(Budget.ATTEMPT, Category.UPSTREAM_5XX)
    return _REFUSED


def backoff(
    failures: int, *, initial: float, longest: float, draw: Callable[[], float] = random.random
) -> float:
    """Seconds before the next ask after `failures` in a row: doubling, with jitter of a half."""
    bound = min(initial * 2.0 ** min(max(failures - 1, 0), 30), longest)
    return bound * (0.5 + draw() / 2)


def retry_after(value: str | None, now: datetime) -> float | None:
    """Seconds of a Retry-After header, a number or an HTTP date, capped; None if it says nothing."""
    if not value:
        return None
    try:
        seconds = float(value)
    except ValueError:
        seconds = _seconds_until(value, now)
    return None if math.isnan(seconds) else min(max(seconds, 0.0), MAX_RETRY_AFTER)


def _seconds_until(date: str, now: datetime) -> float:
    try:
        moment = parsedate_to_datetime(date)
    except (ValueError, OverflowError):
        return math.nan
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (moment - now).total_seconds()
