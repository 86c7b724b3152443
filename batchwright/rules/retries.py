"""Which budget an outcome uses, and how long to wait before asking again (R8).

SETTLED    a success, or an error that asking again would not change
ATTEMPT    may be the request's own fault; `max_attempts` of them settle the line
CAPACITY   the backend's trouble: costs time, never attempts
BLOCKED    the backend refuses us: like capacity, and opens the circuit at once
"""

import math
import random
from collections.abc import Callable, Mapping
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
    """The categories of S1-R8, and `none`, of a success."""

    NONE = "none"
    AUTHENTICATION = "authentication"
    RATE_LIMIT = "rate_limit"
    TIMEOUT = "timeout"
    TRANSPORT = "transport"
    UPSTREAM_5XX = "upstream_5xx"
    SERVICE_UNAVAILABLE = "service_unavailable"
    NO_HEALTHY_DEPLOYMENTS = "no_healthy_deployments"
    INVALID_REQUEST = "invalid_request"
    RESPONSE_SHAPE = "response_shape"
    POLICY = "policy"  # ours, before anything was sent
    BUDGET = "budget"
    MISSING_MODEL = "missing_model"
    PERMISSION = "permission"
    UNKNOWN = "unknown"


class Verdict(NamedTuple):
    budget: Budget
    category: Category


class Retries(NamedTuple):
    """Of one model; seconds. `give_up_after` 0: the deadline."""

    max_attempts: int = 5
    initial_backoff: float = 1.0
    max_backoff: float = 60.0
    give_up_after: float = 0.0


NOT_NOW = (Budget.CAPACITY, Budget.BLOCKED)  # what costs no attempt
MAX_RETRY_AFTER = 300.0  # S1-159
# The circuit spaces requests to a backend that is away; a line's own wait only keeps it off the next try.
MAX_CAPACITY_BACKOFF = 5.0

SUCCESS = Verdict(Budget.SETTLED, Category.NONE)
NOT_SENT = Verdict(Budget.CAPACITY, Category.TRANSPORT)
NO_ANSWER_IN_TIME = Verdict(Budget.ATTEMPT, Category.TIMEOUT)
ANSWER_BROKE = Verdict(Budget.ATTEMPT, Category.TRANSPORT)
UNREADABLE = Verdict(Budget.ATTEMPT, Category.RESPONSE_SHAPE)
TOO_LARGE = Verdict(Budget.SETTLED, Category.RESPONSE_SHAPE)
REJECTED = Verdict(Budget.SETTLED, Category.POLICY)
HOOK_FAILED = Verdict(Budget.ATTEMPT, Category.POLICY)
BROKEN_SHARE = Verdict(Budget.SETTLED, Category.RESPONSE_SHAPE)  # of a request that lines shared (S1-224)
JOB_FAILED = Verdict(Budget.ATTEMPT, Category.UPSTREAM_5XX)
JOB_REFUSED = Verdict(Budget.SETTLED, Category.UPSTREAM_5XX)  # the backend says that asking again is vain
JOB_LOST = Verdict(Budget.ATTEMPT, Category.TRANSPORT)
NO_KEY = Verdict(Budget.BLOCKED, Category.AUTHENTICATION)
NO_DEPLOYMENTS = Verdict(Budget.CAPACITY, Category.NO_HEALTHY_DEPLOYMENTS)
BEHIND_IS_AWAY = Verdict(Budget.CAPACITY, Category.TRANSPORT)  # a gateway reaches no backend of its own
NO_BUDGET = Verdict(Budget.CAPACITY, Category.BUDGET)

_RATE_LIMIT = Verdict(Budget.CAPACITY, Category.RATE_LIMIT)
_UNAVAILABLE = Verdict(Budget.CAPACITY, Category.SERVICE_UNAVAILABLE)
_UPSTREAM = Verdict(Budget.ATTEMPT, Category.UPSTREAM_5XX)
_UNKNOWN = Verdict(Budget.ATTEMPT, Category.UNKNOWN)
_REFUSED = Verdict(Budget.SETTLED, Category.INVALID_REQUEST)

# What a status means; those that are not here follow their hundred.
STATUSES: dict[int, Verdict] = {
    401: NO_KEY,
    402: Verdict(Budget.SETTLED, Category.BUDGET),
    403: Verdict(Budget.BLOCKED, Category.PERMISSION),
    404: Verdict(Budget.SETTLED, Category.MISSING_MODEL),
    **dict.fromkeys((408, 409, 425), NO_ANSWER_IN_TIME),
    429: _RATE_LIMIT,
    501: _REFUSED,
    **dict.fromkeys((502, 503, 504, *range(520, 530)), _UNAVAILABLE),
    505: _REFUSED,
}
_HUNDREDS = {2: SUCCESS, 3: _UNAVAILABLE, 4: _REFUSED, 5: _UPSTREAM}
# How gateways say that they have nobody to ask, and providers that the money is gone: beside 429 or 503.
_NOBODY = (b"no healthy", b"no deployments available", b"no_healthy_deployments", b"no available server")
_NO_MONEY = (b"insufficient_quota", b"budget has been exceeded", b"budget_exceeded")
# How they say with a 500 that what is behind them cannot be reached, where others would answer 502.
_NOT_REACHED = (
    b"apiconnectionerror",
    b"exception - connection error",  # LiteLLM of any provider
    b"connection refused",
    b"cannot connect to host",
    b"all connection attempts failed",
    b"name or service not known",
    b"temporary failure in name resolution",
    b"no route to host",
)
_LOOKED_AT = 4096


def judge(status: int) -> Verdict:
    """What an HTTP status means for the line, its body apart.

    A redirect is not followed and never the line's fault: something stands between us and the backend.
    """
    return STATUSES.get(status) or _HUNDREDS.get(status // 100, _UNKNOWN)


def judge_answer(status: int, headers: Mapping[bytes, bytes], body: bytes) -> Verdict:
    """The same of a whole answer: `x-should-retry` decides where the line may be at fault, and only there."""
    verdict = judge(status)
    if verdict is SUCCESS:
        return verdict
    if verdict.budget is Budget.CAPACITY:
        said = body[:_LOOKED_AT].lower()
        if any(words in said for words in _NO_MONEY):
            return NO_BUDGET
        return NO_DEPLOYMENTS if any(words in said for words in _NOBODY) else verdict
    if status == 500:
        said = body[:_LOOKED_AT].lower()
        if any(words in said for words in _NOT_REACHED):
            return BEHIND_IS_AWAY
    wish = headers.get(b"x-should-retry", b"").strip().lower()
    if wish == b"true" and verdict.budget is Budget.SETTLED:
        return Verdict(Budget.ATTEMPT, verdict.category)
    if wish == b"false" and verdict.budget is Budget.ATTEMPT:
        return Verdict(Budget.SETTLED, verdict.category)
    return verdict


def backoff(
    failures: int, *, initial: float, longest: float, draw: Callable[[], float] = random.random
) -> float:
    """Seconds before the next ask after `failures` in a row: up to a bound that doubles, at random."""
    return min(initial * 2.0 ** min(max(failures - 1, 0), 30), longest) * draw()


def within(wait: float, left: float) -> float:
    """A wait that leaves time for an answer: half of what is `left` until the deadline at most."""
    return min(wait, max(left, 0.0) / 2)


def asked_wait(headers: Mapping[bytes, bytes], now: datetime) -> float | None:
    """Seconds a backend asks us to wait: of `retry-after-ms`, else of `retry-after`; capped."""
    milliseconds = _number(headers.get(b"retry-after-ms", b"").decode(errors="replace"))
    if not math.isnan(milliseconds):
        return _capped(milliseconds / 1000)
    return retry_after(headers.get(b"retry-after", b"").decode(errors="replace"), now)


def retry_after(value: str | None, now: datetime) -> float | None:
    """Seconds of a Retry-After header, a number or an HTTP date, capped; None if it says nothing."""
    if not value:
        return None
    seconds = _number(value)
    if math.isnan(seconds):
        seconds = _seconds_until(value, now)
    return None if math.isnan(seconds) else _capped(seconds)


def _capped(seconds: float) -> float:
    return min(max(seconds, 0.0), MAX_RETRY_AFTER)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _seconds_until(date: str, now: datetime) -> float:
    try:
        moment = parsedate_to_datetime(date)
    except (ValueError, OverflowError):
        return math.nan
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (moment - now).total_seconds()
