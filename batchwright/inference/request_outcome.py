"""Outcome of one request: a classified response, or the reason why the request failed."""

import re

import httpx
from msgspec import Struct

from batchwright.contracts.errors import LineCode
from batchwright.inference.transport.base import ResponseTooLarge
from batchwright.rules.dispatch import retry_policy
from batchwright.rules.dispatch.retry_policy import BACKEND_AT_FAULT, Budget, Category, Classification
from batchwright.rules.results.dead_letters import error_summary
from batchwright.rules.results.token_usage import Tokens

_MAX_QUOTED = 200
_ADDRESS = re.compile(
    r"[a-zA-Z]{2,9}://[^\s\"']+"
    r"|\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?"
    r"|\b(?:[0-9a-fA-F]{1,4}:){1,7}(?::[0-9a-fA-F]{1,4}){1,7}\b"
    r"|\b(?:[0-9a-fA-F]{1,4}:){7}[0-9a-fA-F]{1,4}\b"
    r"|(?<![a-zA-Z0-9.-])[a-zA-Z][a-zA-Z0-9.-]*+:\d{2,5}\b"
)
# httpx has no exception class for a connection that ended early, so its message is compared.
_CUT_OFF = "peer closed connection"  # after the response had started
_CLOSED_EARLY = ("Server disconnected", _CUT_OFF)


class Outcome(Struct, frozen=True):
    """Result of sending one request.

    Attributes:
        verdict: what happens to the line, for example that it is sent again.
        status: HTTP status; 0 if there is no usable response. In this case, `code` and `message` give the
            reason.
        message: error message for the tenant. It contains no address, path or exception of the operator's
            systems.
        cause: error details for the operator, which may contain addresses, paths and exceptions.
        retry_after: seconds for which the backend asked the client to wait; None if it did not ask.
    """

    verdict: Classification
    status: int = 0
    body: bytes = b""
    backend_request_id: str = ""
    code: LineCode = LineCode.CONNECTION_ERROR
    message: str = ""
    retry_after: float | None = None
    cause: str = ""  # for logs, traces and operators
    detail: str = ""  # the backend's own words, for the line's error only
    response_started: bool = False  # True if the connection broke after the response had started
    usage: Tokens | None = None  # tokens; None if the body has not been read

    @property
    def operator_message(self) -> str:
        return f"{self.message.removesuffix('.')}: {self.cause}" if self.cause else self.message

    @property
    def is_unsent(self) -> bool:
        """True if no request was sent: a hook rejected it or failed, or the backend could not be reached.

        A hook is a function of the operator that is called before each request.
        """
        is_of_hook = self.verdict.category is Category.POLICY
        return not self.status and (is_of_hook or self.verdict.budget in BACKEND_AT_FAULT)

    @property
    def is_unanswered(self) -> bool:
        """True if the request was sent and no response arrived."""
        lost = self.verdict in (retry_policy.RESPONSE_INTERRUPTED, retry_policy.RESPONSE_TIMEOUT)
        return (
            lost
            and not self.response_started
            and not self.status
            and self.code is not LineCode.INVALID_RESPONSE
        )


def quotable_error(outcome: Outcome) -> str:
    """Return the backend's error message as one line without network addresses; empty if there is none.

    The message may quote the request. Show the message only to the tenant of the line.
    """
    if outcome.verdict.budget is not Budget.ATTEMPT or outcome.status < 400:
        return ""
    words = " ".join(
        "".join(c if c.isprintable() else " " for c in error_summary(outcome.status, outcome.body)).split()
    )
    if words.startswith("<"):  # an HTML page
        return ""
    return _ADDRESS.sub("[address]", words)[:_MAX_QUOTED]


def invalid_response(message: str, detail: str = "", cause: str = "") -> Outcome:
    """Create the outcome for a response that is not a valid result.

    Args:
        message: the reason in Batchwright's words, which the tenant sees.
        detail: the reason in the backend's words, which is shown only in the line's error.
        cause: further details, which only the operator sees.
    """
    code = LineCode.INVALID_RESPONSE
    return Outcome(retry_policy.INVALID_RESPONSE, code=code, message=message, detail=detail, cause=cause)


def from_exception(error: Exception, *, seconds: float, max_bytes: int) -> Outcome:
    """Create the outcome for a request that failed without a usable response.

    Args:
        error: exception of the transport or of decoding the response.
        seconds: time limit of the request, for the error message.
        max_bytes: size limit of the response, for the error message.
    """
    match error:
        case httpx.ConnectError() | httpx.ConnectTimeout() | httpx.PoolTimeout():
            return Outcome(
                retry_policy.NOT_SENT, message="The backend could not be reached.", cause=str(error)
            )
        case httpx.TimeoutException() | TimeoutError():
            said = str(error) if type(error) is TimeoutError else ""
            message = said or f"The backend did not answer within {seconds:g} s."
            return Outcome(retry_policy.RESPONSE_TIMEOUT, code=LineCode.REQUEST_TIMEOUT, message=message)
        case httpx.TransportError():
            return _from_transport_error(error)
        case ResponseTooLarge():
            message = f"The response is larger than {max_bytes} bytes."
            return Outcome(retry_policy.RESPONSE_TOO_LARGE, code=LineCode.RESPONSE_TOO_LARGE, message=message)
        case _:
            return invalid_response("The response cannot be decompressed.", cause=str(error))


def _from_transport_error(error: httpx.TransportError) -> Outcome:
    if isinstance(error, httpx.RemoteProtocolError) and not str(error).startswith(_CLOSED_EARLY):
        message, code = "The backend's response is not HTTP.", LineCode.INVALID_RESPONSE
        return Outcome(retry_policy.RESPONSE_INTERRUPTED, code=code, message=message, cause=str(error))
    message, started = (
        "The connection ended before the response was complete.",
        str(error).startswith(_CUT_OFF),
    )
    return Outcome(
        retry_policy.RESPONSE_INTERRUPTED, message=message, response_started=started, cause=str(error)
    )
