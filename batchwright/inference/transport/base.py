"""Transport protocol: send one HTTP request and return its whole response.

A failed request raises one of httpx's exceptions. The class of the exception shows if the request was sent:

never sent                     httpx.ConnectError, httpx.ConnectTimeout
sent, connection ended         httpx.ReadError, usually before the response began
sent, incomplete response      httpx.RemoteProtocolError; its message contains "peer closed connection"
sent, response is not HTTP     httpx.RemoteProtocolError
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import httpx
from msgspec import Struct

Header = tuple[bytes, bytes]
HEADER_LINE = b"\r\n%b: %b"  # starts with the line break that ends the previous line


class Origin(NamedTuple):
    """Scheme, host and port of a connection's target. `secure` is True for https."""

    secure: bool
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class TargetUrl:
    """A parsed URL. It is parsed once and used for many requests."""

    url: httpx.URL
    origin: Origin
    path: bytes  # path and query, as sent
    authority: bytes  # value of the host header

    @classmethod
    def of(cls, url: str) -> "TargetUrl":
        """Parse a URL. Raise httpx.InvalidURL if the URL is not valid."""
        parsed = httpx.URL(url)
        secure = parsed.scheme == "https"
        origin = Origin(secure, parsed.host, parsed.port or (443 if secure else 80))
        return cls(parsed, origin, parsed.raw_path, parsed.netloc)


class SharedHeaders:
    """Headers that many requests have in common. They are converted to bytes only once."""

    __slots__ = ("encoded", "headers")

    def __init__(self, headers: Sequence[Header] = ()) -> None:
        self.headers = tuple(headers)
        self.encoded = b"".join([HEADER_LINE % header for header in headers])


_NO_HEADERS = SharedHeaders()


class BackendRequest(Struct, eq=False):
    """One HTTP request to a backend. The transport adds the headers `host` and `content-length`.

    Attributes:
        first_byte: maximum number of seconds until the response starts; 0 for no limit.
        idle: maximum number of seconds in which no data of a started response arrives; 0 for no limit.
    """

    method: bytes
    target: TargetUrl
    headers: list[Header]
    body: bytes = b""
    first_byte: float = 0.0
    idle: float = 0.0
    shared_headers: SharedHeaders = _NO_HEADERS


class BackendResponse(Struct):
    """One HTTP response. Header names are in lower case. The body may be compressed."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes


class StreamedResponse(NamedTuple):
    """Status and headers of an HTTP response, and its body as an iterator over pieces of bytes.

    Header names are in lower case. The iterator raises the same exceptions as `Transport.exchange`, except
    `ResponseTooLarge`.
    """

    status: int
    headers: dict[bytes, bytes]
    pieces: AsyncIterator[bytes]


class ResponseTooLarge(Exception):
    """Raised if the body of a response is larger than the limit."""


class Exchange(Protocol):
    """A request in flight, which can be cancelled.

    When the request ends, its callback is called with the response or the error.
    """

    def cancel(self) -> None:
        """Cancel the request and close its connection. The request's callback is then not called.

        If the callback has already been called, do not call `cancel`.
        """
        ...


# Callback at the end of a request. It is called once, with the response or the error, and must not raise.
OnComplete = Callable[[BackendResponse | Exception], None]


class Transport(Protocol):
    async def exchange(self, request: BackendRequest, *, max_bytes: int, seconds: float) -> BackendResponse:
        """Send a request once and return its response. Redirects are not followed, and cookies are not kept.

        If the call is cancelled, its connection is closed.

        Args:
            max_bytes: maximum size of the response's body.
            seconds: time limit for the request and the complete response.

        Raises:
            httpx.TransportError: the request was not sent or got no valid response. The module's docstring
                lists the cases.
            TimeoutError: the exchange took longer than `seconds` or than a time limit in `request`. The
                request may have been sent.
            ResponseTooLarge: the body is larger than `max_bytes`.
        """
        ...

    def try_exchange_now(
        self, request: BackendRequest, *, max_bytes: int, seconds: float, ended: OnComplete
    ) -> Exchange | None:
        """Send a request if that is possible without awaiting, and return the exchange.

        `ended` is called once when the exchange ends. Its argument is the response that `exchange` would
        return, or the exception that `exchange` would raise. If nothing was sent, return None and never call
        `ended`.
        """
        return None

    @asynccontextmanager
    async def stream(
        self, request: BackendRequest, *, max_bytes: int, seconds: float
    ) -> AsyncGenerator[StreamedResponse]:
        """Context manager that sends a request once and yields its response, before the body has arrived.

        At the end of the `with` block, an incomplete response is cancelled. The block may begin in one
        asyncio task and end in another. A transport that cannot stream yields a response with a single piece.

        Args:
            max_bytes: maximum size of the body, for a transport that cannot stream.
            seconds: time limit for the request and the complete response.

        Raises: as in `exchange`.
        """
        response = await self.exchange(request, max_bytes=max_bytes, seconds=seconds)
        yield StreamedResponse(response.status, response.headers, _single_piece(response.body))

    async def retire(self) -> None:
        """Stop reusing connections: each is closed when its current request has ended.

        Call this when the transport gets no new requests.
        """
        ...

    async def aclose(self) -> None:
        """Close all idle connections; some implementations also close the connections in use."""
        ...


async def _single_piece(body: bytes) -> AsyncIterator[bytes]:
    yield body
