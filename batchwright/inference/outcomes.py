"""What came of one request: its answer as it is judged, or how it failed."""

import re
from datetime import UTC, datetime

import httpx
from msgspec import Struct

from batchwright.contracts.errors import LineCode
from batchwright.inference.engine import AnswerTooLarge
from batchwright.rules import retries
from batchwright.rules.retries import Budget, Verdict
from batchwright.rules.usable import problem_of
from batchwright.rules.usage import Tokens, tokens_if_plain

FAILURES = (httpx.TransportError, httpx.DecodingError, TimeoutError, AnswerTooLarge)  # of an exchange
_LOCATION = re.compile(r"(https?://[A-Za-z0-9.:\[\]_-]+)(?:/|$)")
_MOST_ID_BYTES = 256  # each line of a batch has one
# How httpx's own engine words a connection that ended: it has no class of its own for that.
_TORN = "peer closed connection"  # the answer had begun
_ENDED = ("Server disconnected", _TORN)


class Outcome(Struct, frozen=True):
    """`status` is 0 where no usable answer came; then `code` and `message` say what happened."""

    verdict: Verdict
    status: int = 0
    body: bytes = b""
    backend_request_id: str = ""
    code: LineCode = LineCode.CONNECTION_ERROR
    message: str = ""
    retry_after: float | None = None
    detail: str = ""  # the backend's own words: for the line, not for those who wait
    has_begun: bool = False  # a broken answer had
    usage: Tokens | None = None  # None: the body was not looked at for it

    @property
    def is_unanswered(self) -> bool:
        """Whether it was sent and nothing came back: what a backend that goes away looks like, too."""
        lost = self.verdict in (retries.ANSWER_BROKE, retries.NO_ANSWER_IN_TIME)
        return lost and not self.has_begun and not self.status and self.code is not LineCode.INVALID_RESPONSE


def judged(status: int, headers: dict[bytes, bytes], body: bytes) -> Outcome:
    """An answer, looked at."""
    usage = tokens_if_plain(body) if status == 200 else None
    if usage is not None:
        return Outcome(retries.SUCCESS, status, body, _id_of(headers), usage=usage)
    outcome = as_it_is(status, headers, body)
    if outcome.verdict is not retries.SUCCESS or (problem := problem_of(status, body)) is None:
        return outcome
    if not problem.status:
        return unreadable(problem.message, problem.detail)
    return as_it_is(problem.status, headers, body, problem.message)


def as_it_is(status: int, headers: dict[bytes, bytes], body: bytes, message: str = "") -> Outcome:
    """By its status; `message` says what happened, where that is more than the status."""
    if status < 100:
        return unreadable(f"The backend answered with the status {status:03}, which is none of HTTP.")
    verdict = retries.judge_answer(status, headers, body)
    if verdict.budget is Budget.SETTLED:
        return Outcome(verdict, status, body, _id_of(headers))
    if 300 <= status < 400:
        message = f"The backend redirects{_whereto(headers)} ({status}), which is not followed."
    if verdict is retries.BEHIND_IS_AWAY:
        message = f"The backend answered {status}, for it cannot reach what is behind it."
    message = message or f"The backend answered {status}."
    wait = retries.asked_wait(headers, datetime.now(UTC))
    return Outcome(verdict, status, body, _id_of(headers), message=message, retry_after=wait)


def _id_of(headers: dict[bytes, bytes]) -> str:
    found = headers.get(b"x-request-id")
    return "" if found is None else found[:_MOST_ID_BYTES].decode(errors="replace")


def unreadable(message: str, detail: str = "") -> Outcome:
    """An answer came, but no result."""
    return Outcome(retries.UNREADABLE, code=LineCode.INVALID_RESPONSE, message=message, detail=detail)


def _whereto(headers: dict[bytes, bytes]) -> str:
    """Scheme and host only: the rest may hold a secret."""
    found = _LOCATION.match(headers.get(b"location", b"").decode("latin-1"))
    return f" to {found[1]}" if found else ""


def failed(error: Exception, *, seconds: float, most_bytes: int) -> Outcome:
    """By one of FAILURES, and the limits of the exchange."""
    match error:
        case httpx.ConnectError() | httpx.ConnectTimeout() | httpx.PoolTimeout():
            return Outcome(retries.NOT_SENT, message=f"The backend could not be reached: {error}")
        case httpx.TimeoutException() | TimeoutError():
            said = str(error) if type(error) is TimeoutError else ""
            message = said or f"The backend did not answer within {seconds:g} s."
            return Outcome(retries.NO_ANSWER_IN_TIME, code=LineCode.REQUEST_TIMEOUT, message=message)
        case httpx.TransportError():
            return _broken(error)
        case AnswerTooLarge():
            message = f"The answer is larger than {most_bytes} bytes."
            return Outcome(retries.TOO_LARGE, code=LineCode.RESPONSE_TOO_LARGE, message=message)
        case _:
            return unreadable(f"The answer cannot be unpacked: {error}")


def _broken(error: httpx.TransportError) -> Outcome:
    if isinstance(error, httpx.RemoteProtocolError) and not str(error).startswith(_ENDED):
        message = f"What the backend sent is not HTTP: {error}"
        return Outcome(retries.ANSWER_BROKE, code=LineCode.INVALID_RESPONSE, message=message)
    message = f"The connection ended before the answer did: {error}"
    return Outcome(retries.ANSWER_BROKE, message=message, has_begun=str(error).startswith(_TORN))
