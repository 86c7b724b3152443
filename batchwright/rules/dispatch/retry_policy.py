"""Retry policy: decide what the outcome of a request means for its line, and how long a retry waits."""

import json
import math
import random
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import NamedTuple

import msgspec

from batchwright.rules.json_text import replace_lone_surrogates


class Budget(StrEnum):
    """The effect of a request's outcome on the line's budget of attempts.

    A line has `max_attempts` attempts. When all are used up, the line fails.
    """

    SETTLED = "settled"  # the line ends: a success, or an error that a retry would not change
    ATTEMPT = "attempt"  # costs one of the line's `max_attempts`, because the request may be at fault
    CAPACITY = "capacity"  # costs time but no attempt, because the backend is at fault
    CREDENTIALS = "credentials"  # like CAPACITY, and the circuit breaker opens at once


class Category(StrEnum):
    """The kind of failure of a request, for metrics and error files.

    If the request succeeded, its category is `none`.
    """

    NONE = "none"
    AUTHENTICATION = "authentication"
    RATE_LIMIT = "rate_limit"
    TIMEOUT = "timeout"
    TRANSPORT = "transport"
    UPSTREAM_5XX = "upstream_5xx"
    SERVICE_UNAVAILABLE = "service_unavailable"
    BUSY = "busy"  # the backend serves direct callers first, and they use its slots
    NO_HEALTHY_DEPLOYMENTS = "no_healthy_deployments"
    INVALID_REQUEST = "invalid_request"
    RESPONSE_SHAPE = "response_shape"
    POLICY = "policy"  # rejected by a hook before anything was sent
    BUDGET = "budget"
    MISSING_MODEL = "missing_model"
    PERMISSION = "permission"
    UNKNOWN = "unknown"


class Classification(NamedTuple):
    """Meaning of a request's outcome: its effect on the line, and the kind of failure.

    Attributes:
        budget: the effect on the line. The outcome ends the line, uses up one of the line's attempts, or
            only costs time.
        category: the kind of failure; `Category.NONE` if the request succeeded.
    """

    budget: Budget
    category: Category


class RetryPolicy(NamedTuple):
    """The retry settings of one model. Times are in seconds.

    Attributes:
        max_attempts: number of failed attempts after which a line fails. A failure that is the backend's
            fault does not count.
        initial_backoff: maximum wait after the first failure.
        max_backoff: maximum wait after any failure.
        give_up_after: maximum time that a line waits because of the backend's failures. Then the line fails.
            0 means that the line waits until the batch's deadline.
    """

    max_attempts: int = 5
    initial_backoff: float = 1.0
    max_backoff: float = 60.0
    give_up_after: float = 0.0


BACKEND_AT_FAULT = (Budget.CAPACITY, Budget.CREDENTIALS)  # outcomes that cost a line no attempt
MAX_RETRY_AFTER = 300.0
# Short, because the circuit breaker already delays requests to an unavailable backend.
MAX_CAPACITY_BACKOFF = 5.0

SUCCESS = Classification(Budget.SETTLED, Category.NONE)
NOT_SENT = Classification(Budget.CAPACITY, Category.TRANSPORT)
RESPONSE_TIMEOUT = Classification(Budget.ATTEMPT, Category.TIMEOUT)
RESPONSE_INTERRUPTED = Classification(Budget.ATTEMPT, Category.TRANSPORT)
INVALID_RESPONSE = Classification(Budget.ATTEMPT, Category.RESPONSE_SHAPE)
RESPONSE_TOO_LARGE = Classification(Budget.SETTLED, Category.RESPONSE_SHAPE)
HOOK_REJECTED = Classification(Budget.SETTLED, Category.POLICY)
HOOK_FAILED = Classification(Budget.ATTEMPT, Category.POLICY)
# A line's part of the response to a shared request is invalid.
INVALID_SHARE = Classification(Budget.SETTLED, Category.RESPONSE_SHAPE)
JOB_FAILED = Classification(Budget.ATTEMPT, Category.UPSTREAM_5XX)
# The backend says that a retry is pointless.
JOB_FAILED_FOR_GOOD = Classification(Budget.SETTLED, Category.UPSTREAM_5XX)
JOB_LOST = Classification(Budget.ATTEMPT, Category.TRANSPORT)
NOT_AUTHENTICATED = Classification(Budget.CREDENTIALS, Category.AUTHENTICATION)
NO_DEPLOYMENTS = Classification(Budget.CAPACITY, Category.NO_HEALTHY_DEPLOYMENTS)
# A gateway cannot reach the backend behind it.
UPSTREAM_UNREACHABLE = Classification(Budget.CAPACITY, Category.TRANSPORT)
OUT_OF_BUDGET = Classification(Budget.CAPACITY, Category.BUDGET)
UNAVAILABLE = Classification(Budget.CAPACITY, Category.SERVICE_UNAVAILABLE)
BUSY = Classification(Budget.CAPACITY, Category.BUSY)

_RATE_LIMIT = Classification(Budget.CAPACITY, Category.RATE_LIMIT)
_UPSTREAM = Classification(Budget.ATTEMPT, Category.UPSTREAM_5XX)
_UNKNOWN = Classification(Budget.ATTEMPT, Category.UNKNOWN)
_REJECTED = Classification(Budget.SETTLED, Category.INVALID_REQUEST)

# Statuses with a meaning of their own. All others are classified by their first digit.
STATUS_CLASSES: dict[int, Classification] = {
    401: NOT_AUTHENTICATED,
    402: Classification(Budget.SETTLED, Category.BUDGET),
    403: Classification(Budget.CREDENTIALS, Category.PERMISSION),
    404: Classification(Budget.SETTLED, Category.MISSING_MODEL),
    **dict.fromkeys((408, 409, 425), RESPONSE_TIMEOUT),
    429: _RATE_LIMIT,
    501: _REJECTED,
    **dict.fromkeys((502, 503, 504, *range(520, 530)), UNAVAILABLE),
    505: _REJECTED,
}
_STATUS_FAMILIES = {2: SUCCESS, 3: UNAVAILABLE, 4: _REJECTED, 5: _UPSTREAM}
# Phrases in errors with 429 or 503, from gateways without an available backend, and from providers whose
# budget is spent.
_NO_BACKEND_PHRASES = (
    "no healthy",
    "no deployments available",
    "no_healthy_deployments",
    "no available server",
)
_NO_BUDGET_PHRASES = ("insufficient_quota", "budget has been exceeded", "budget_exceeded")
# Phrases in errors with status 500, from gateways that cannot reach their backend. Other gateways return 502.
_UNREACHABLE_PHRASES = (
    "apiconnectionerror",
    "exception - connection error",  # LiteLLM, for any provider
    "connection refused",
    "cannot connect to host",
    "all connection attempts failed",
    "name or service not known",
    "temporary failure in name resolution",
    "no route to host",
)
_MAX_PARSED_BYTES = 1024 * 1024
_MAX_FOLDED_CHARACTERS = 4096
_MAX_SEARCHED_CHARACTERS = 256  # only the beginning of an error's message is searched


def classify(status: int) -> Classification:
    """Return the effect of an HTTP status on the line, and the kind of failure. The body is not considered.

    A redirect is not followed. It usually comes from a proxy in front of the backend, so it counts as an
    unavailable backend and not as an error of the line.
    """
    return STATUS_CLASSES.get(status) or _STATUS_FAMILIES.get(status // 100, _UNKNOWN)


def classify_response(
    status: int, headers: Mapping[bytes, bytes], body: bytes, request: bytes = b""
) -> Classification:
    """Return the effect of a complete response on the line, and the kind of failure.

    The result depends mostly on the status. Two other things can change it:

    - Some gateways name the cause at the beginning of their error message, for example that no backend is
      healthy. A phrase that also occurs in `request` is ignored, because many errors quote the request.
    - The header `x-should-retry` decides whether a failure of the line itself is retried. It is ignored for
      failures that are always retried, such as those of an overloaded backend.

    Args:
        body: body of the response.
        request: body of the request.
    """
    found = classify(status)
    if found is SUCCESS:
        return found
    if found.budget is Budget.CAPACITY:
        if _mentions(body, _NO_BUDGET_PHRASES, request):
            return OUT_OF_BUDGET
        return NO_DEPLOYMENTS if _mentions(body, _NO_BACKEND_PHRASES, request) else found
    if status == 500 and _mentions(body, _UNREACHABLE_PHRASES, request):
        return UPSTREAM_UNREACHABLE
    should_retry = headers.get(b"x-should-retry", b"").strip().lower()
    if should_retry == b"true" and found.budget is Budget.SETTLED:
        return Classification(Budget.ATTEMPT, found.category)
    if should_retry == b"false" and found.budget is Budget.ATTEMPT:
        return Classification(Budget.SETTLED, found.category)
    return found


def _mentions(body: bytes, phrases: Iterable[str], request: bytes) -> bool:
    """Return True if the beginning of an error `body` contains one of the phrases.

    Phrases that the request contains are ignored, because many errors quote the request.
    """
    error = _beginning(body)
    found = [phrase for phrase in phrases if phrase in error]
    if not found:
        return False
    sent = _folded(_readable(request))
    return any(phrase not in sent for phrase in found)


class _GatewayError(msgspec.Struct):
    """The usual fields of an error response.

    They are at the top level of the response's body, or in its object `error`.
    """

    type: object = None
    code: object = None
    message: object = None


class _GatewayErrorBody(_GatewayError):
    error: _GatewayError | str | None = None
    detail: object = None


_BODY = msgspec.json.Decoder(_GatewayErrorBody)


def _beginning(body: bytes) -> str:
    """Return the start of a backend's error response as lower-case text, to search it for known phrases.

    There are three cases:

    - If the body is a JSON object, the text has the error's type, its code and the start of its message.
    - If the body starts like a JSON object but cannot be parsed, the text is empty.
    - If the body is anything else, the text is the start of the body.
    """
    try:
        found = _BODY.decode(replace_lone_surrogates(body[:_MAX_PARSED_BYTES]))
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        if body.lstrip()[:1] == b"{":
            return ""
        return _folded(body[:_MAX_FOLDED_CHARACTERS].decode(errors="replace"))[:_MAX_SEARCHED_CHARACTERS]
    error = found.error if isinstance(found.error, _GatewayError) else found
    message = found.error if isinstance(found.error, str) else error.message or found.detail
    texts = (error.type, error.code, message)
    return " ".join(
        _folded(text[:_MAX_FOLDED_CHARACTERS])[:_MAX_SEARCHED_CHARACTERS]
        for text in texts
        if isinstance(text, str)
    )


def _readable(request: bytes) -> str:
    """Return a request's body as text. If it is valid JSON, the escapes in its strings are decoded."""
    if b"\\" in request:
        with suppress(ValueError, RecursionError):
            return json.dumps(json.loads(request), ensure_ascii=False)
    return request.decode(errors="replace")


def _folded(text: str) -> str:
    return " ".join(text.replace("\\n", " ").lower().split())


def backoff(
    failures: int, *, initial: float, longest: float, draw: Callable[[], float] = random.random
) -> float:
    """Return the seconds to wait before the next attempt.

    The wait is random between 0 and a limit. The limit is `initial` after the first failure, doubles after
    each further failure, and is at most `longest`.

    Args:
        failures: number of failures in a row, without a success between them.
        initial: limit after the first failure, in seconds.
        longest: maximum of the limit, in seconds.
        draw: returns a random number from 0 to 1.
    """
    return min(initial * 2.0 ** min(max(failures - 1, 0), 30), longest) * draw()


def within_deadline(wait: float, remaining: float) -> float:
    """Shorten a wait to at most half of the time until the deadline. Return the shortened wait.

    The other half is left for the request itself, so that its response can still arrive in time.

    Args:
        wait: the wait, in seconds.
        remaining: seconds until the deadline; 0 or less after it.
    """
    return min(wait, max(remaining, 0.0) / 2)


def retry_after_of(headers: Mapping[bytes, bytes], now: datetime) -> float | None:
    """Return for how many seconds a backend asks its client to wait; None if no header asks for a wait.

    The header `retry-after-ms` is used if it is a number. If it is not, `retry-after` is used. The result is
    at most MAX_RETRY_AFTER.
    """
    milliseconds = _number(headers.get(b"retry-after-ms", b"").decode(errors="replace"))
    if not math.isnan(milliseconds):
        return _capped(milliseconds / 1000)
    return parse_retry_after(headers.get(b"retry-after", b"").decode(errors="replace"), now)


def parse_retry_after(value: str | None, now: datetime) -> float | None:
    """Return the wait in a Retry-After header, in seconds; None if the header is missing or invalid.

    The result is at most MAX_RETRY_AFTER.

    Args:
        value: value of the header: a number of seconds or an HTTP date.
        now: the current time, from which the time until the date is computed.
    """
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
