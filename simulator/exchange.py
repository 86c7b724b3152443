"""HTTP requests, responses and error bodies, independent of the HTTP server."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import parse_qsl

import msgspec

from batchwright.simulator.responses import response_types


@dataclass(slots=True)
class HttpRequest:
    """An HTTP request. Header names are in lower case. Only the last value of a repeated header is kept."""

    method: str
    path: str
    query: str
    headers: dict[bytes, bytes]
    body: bytes

    def parameter(self, name: str) -> str | None:
        return dict(parse_qsl(self.query)).get(name)

    def header(self, name: bytes) -> str | None:
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1")


@dataclass(slots=True)
class HttpResponse:
    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict[str, str])


class HttpExchange(Protocol):
    """A request that waits for its response.

    To end the request, the handler calls one of the methods `respond`, `cut` and `abort` once. If the client
    disconnects first, no call is needed.
    """

    on_disconnect: Callable[[], None] | None
    """Called if the client disconnects before the end."""

    @property
    def request(self) -> HttpRequest: ...

    def respond(self, response: HttpResponse) -> None: ...

    def cut(self, response: HttpResponse) -> None:
        """Send the header and half of the body of `response`, then close the connection."""
        ...

    def abort(self) -> None:
        """Reset the connection without sending anything."""
        ...


def error_detail(
    status: int, message: str, *, param: str | None = None, code: str | None = None
) -> response_types.ErrorDetail:
    kind = "server_error" if status >= 500 else "requests" if status == 429 else "invalid_request_error"
    return response_types.ErrorDetail(message, kind, param, code)


def error_response(
    status: int, message: str, *, param: str | None = None, code: str | None = None
) -> HttpResponse:
    detail = error_detail(status, message, param=param, code=code)
    return HttpResponse(status, msgspec.json.encode(response_types.ErrorBody(detail)))


MESSAGES = "/v1/messages"
_MESSAGE_ERRORS = {
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    529: "overloaded_error",
}


def inference_error(
    path: str, status: int, message: str, *, param: str | None = None, code: str | None = None
) -> HttpResponse:
    """Return an error response for a request to `path`. Errors of /v1/messages have Anthropic's form."""
    if path != MESSAGES:
        return error_response(status, message, param=param, code=code)
    kind = _MESSAGE_ERRORS.get(status, "api_error" if status >= 500 else "invalid_request_error")
    body = response_types.MessageErrorBody(response_types.MessageError(message, kind))
    return HttpResponse(status, msgspec.json.encode(body))
