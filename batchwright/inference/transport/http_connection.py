"""One HTTP/1.1 connection, which sends one request at a time. The library llhttp parses the responses."""

import asyncio
import ssl
from collections.abc import Callable
from functools import partial
from io import BytesIO

import httptools
import httpx

from batchwright.inference.transport.base import BackendResponse, OnComplete, ResponseTooLarge

_MAX_HEAD_BYTES = 64 * 1024
_NO_BODY = (204, 304)


class BackendConnection(asyncio.Protocol):
    """One HTTP connection to a backend. It may be reused while `is_reusable` is True. Any error closes it."""

    def __init__(self) -> None:
        self.retire_at = 0.0  # monotonic time after which the transport no longer reuses it
        self._transport: asyncio.Transport | None = None
        self._raw_transport: asyncio.Transport | None = None  # below TLS; has its own write buffer
        self._parser = httptools.HttpResponseParser(self)
        self._on_complete: OnComplete | None = None  # callback of the request in flight
        self._most_bytes = 0
        self._keeps_alive = True
        self._idle_timeout: IdleTimeout | None = None
        self._reset()

    @property
    def is_reusable(self) -> bool:
        """True if another request can be sent now: the connection is open, and no request is in flight."""
        transport = self._transport
        return (
            transport is not None
            and self._keeps_alive
            and self._on_complete is None
            and not transport.get_write_buffer_size()
            and (self._raw_transport is None or not self._raw_transport.get_write_buffer_size())
            and not transport.is_closing()
        )

    async def start_tls(self, context: ssl.SSLContext, host: str) -> None:
        """Start TLS on the open connection to `host`, with the settings in `context`.

        Raise OSError, for example ssl.SSLError, if the handshake fails.
        """
        raw_transport = self._transport
        if raw_transport is None:
            raise ConnectionResetError("the connection was closed before the TLS handshake")
        self._raw_transport = raw_transport
        loop = asyncio.get_running_loop()
        try:
            self._transport = await loop.start_tls(raw_transport, self, context, server_hostname=host)
        except BaseException:
            self._transport = None
            raw_transport.abort()
            raise

    async def exchange(
        self, head: bytes, body: bytes, max_bytes: int, idle_timeout: "IdleTimeout | None" = None
    ) -> BackendResponse:
        """Send one request and return its response. If the call is cancelled, the connection is closed.

        Args:
            head: the encoded request line and headers.
            body: body of the request.
            max_bytes: maximum size of the response's body.
            idle_timeout: time limits until the response starts, and between two pieces of the response; None
                for no limits.

        Raises:
            httpx.ConnectError: the connection was already closed, so nothing was sent.
            httpx.ReadError: the connection ended before the response started.
            httpx.RemoteProtocolError: the response is not HTTP or not complete.
            ResponseTooLarge: the body is larger than `max_bytes`.
            TimeoutError: a limit of `idle_timeout` was exceeded.
        """
        response: asyncio.Future[BackendResponse] = asyncio.get_running_loop().create_future()
        self.start(head, body, max_bytes, partial(_resolve, response), idle_timeout)
        try:
            return await response
        except BaseException:
            self.abort()
            raise

    def start(
        self,
        head: bytes,
        body: bytes,
        max_bytes: int,
        ended: OnComplete,
        idle_timeout: "IdleTimeout | None" = None,
    ) -> None:
        """Send one request. When the request ends, call `ended` with the response or the error.

        If `abort` of this connection is called while the request is in flight, `ended` is not called.

        Raises:
            httpx.ConnectError: the connection is already closed, so nothing was sent.
        """
        if self._transport is None or self._transport.is_closing():
            raise httpx.ConnectError("the backend closed the connection before the request was sent")
        self._most_bytes, self._on_complete, self._idle_timeout = max_bytes, ended, idle_timeout
        try:
            self._transport.writelines((head, body))
        except BaseException:
            self.abort()
            raise
        if idle_timeout is not None:
            idle_timeout.start(self._fail)

    def time_out(self) -> None:
        """End the request in flight with a TimeoutError, and close the connection."""
        self._fail(TimeoutError())

    def abort(self) -> None:
        self._take_callback()
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    # Callbacks of the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses of asyncio's, so isinstance does not recognize them.
        self._transport = transport  # pyright: ignore[reportAttributeAccessIssue]

    def data_received(self, data: bytes) -> None:
        if self._on_complete is None:
            self.abort()  # no request is in flight
            return
        if self._idle_timeout is not None:
            self._idle_timeout.data_received()
        size_before = self._size
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fail(httpx.RemoteProtocolError("the backend switches to another protocol"))
        except httptools.HttpParserError as error:
            # A complete response stays valid, even if invalid data follows.
            self._keeps_alive = False
            if not self._is_complete:
                self._fail(httpx.RemoteProtocolError(str(error) or type(error).__name__))
        # Data that contains no part of the body belongs to the head or the trailer.
        self._head_bytes = self._head_bytes + len(data) if self._size == size_before else 0
        self._check_end()

    def eof_received(self) -> None:
        """Handle the end of the data from the backend: end the request in flight, and close the connection.

        If the response has no stated length, the end of the connection is the end of the response, and the
        request succeeds. If the response should have been longer, the request fails.
        """
        transport = self._transport
        self.connection_lost(None)
        if transport is not None:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._on_complete is None:
            return
        if exc is None and self._ends_at_close:
            self._complete()
        elif self._has_head:
            self._fail(httpx.RemoteProtocolError("peer closed connection within its answer"))
        else:
            self._fail(httpx.ReadError(str(exc) if exc else "Server disconnected"))

    # Callbacks of the parser

    def on_message_begin(self) -> None:
        if self._is_complete:
            self._keeps_alive = False  # unrequested data follows the response

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._has_head:  # ignore trailers and further responses
            self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        if self._is_complete:
            return
        self._status = self._parser.get_status_code()
        self._has_head = not 100 <= self._status < 200
        # The parser accepts only digits.
        announced = int(self._headers.get(b"content-length", b"0")) if self._has_head else 0
        self._is_too_large = announced > self._most_bytes
        if self._has_head and self._idle_timeout is not None:
            self._idle_timeout.response_started()
        has_length = b"content-length" in self._headers or b"transfer-encoding" in self._headers
        self._ends_at_close = self._has_head and not has_length and self._status not in _NO_BODY

    def on_body(self, body: bytes) -> None:
        if self._is_complete:
            return
        first, self._size = not self._size, self._size + len(body)
        if self._size > self._most_bytes:
            return
        if first:
            self._first_piece = body
        else:  # one buffer, because many small objects would take much more memory
            if self._pieces is None:
                self._pieces = BytesIO()
                self._pieces.write(self._first_piece)
            self._pieces.write(body)

    def on_message_complete(self) -> None:
        if self._is_complete:
            return
        if self._has_head:
            self._is_complete = True
            self._keeps_alive = self._parser.should_keep_alive()
        else:
            self._headers = {}  # drop the headers of an interim response; the final response follows

    # The end of a request

    def _check_end(self) -> None:
        if self._on_complete is None:
            return
        if self._is_too_large or self._size > self._most_bytes:
            self._fail(ResponseTooLarge())
        elif self._is_complete:
            self._complete()
        elif self._head_bytes > _MAX_HEAD_BYTES:
            place = "trailer" if self._size else "head"
            self._fail(httpx.RemoteProtocolError(f"the {place} is larger than {_MAX_HEAD_BYTES} bytes"))

    def _complete(self) -> None:
        body, ended = self._pieces.getvalue() if self._pieces else self._first_piece, self._take_callback()
        response = BackendResponse(self._status, self._headers, body)
        self._reset()
        if ended is not None:
            ended(response)

    def _fail(self, error: Exception) -> None:
        ended = self._take_callback()
        if ended is not None:
            self.abort()
            ended(error)

    def _take_callback(self) -> OnComplete | None:
        """Remove the callback of the request in flight, and return it; None if no request is in flight."""
        ended, self._on_complete = self._on_complete, None
        if self._idle_timeout is not None:
            self._idle_timeout.cancel()
            self._idle_timeout = None
        return ended

    def _reset(self) -> None:
        self._status = self._size = self._head_bytes = 0
        self._headers: dict[bytes, bytes] = {}
        self._first_piece, self._pieces = b"", None
        self._has_head = self._is_complete = self._ends_at_close = self._is_too_large = False


class IdleTimeout:
    """A time limit until a response starts, and a time limit between two pieces of the response.

    An interim response (status 1xx) does not count as the start.

    Args:
        first_byte: maximum number of seconds until the response starts; 0 for no limit.
        idle: maximum number of seconds between two pieces; 0 for no limit.
    """

    def __init__(self, first_byte: float, idle: float) -> None:
        self._first_byte, self._idle = first_byte, idle
        self._timer: asyncio.TimerHandle | None = None
        self._last_data_at = 0.0
        self._fail: Callable[[Exception], None] = _ignore

    def start(self, fail: Callable[[Exception], None]) -> None:
        """Start to measure the time until the response starts.

        If the response exceeds the limit `first_byte` or `idle`, `fail` is called once with a TimeoutError.
        If `cancel` is called first, `fail` is not called.
        """
        self._fail = fail
        if self._first_byte:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._first_byte, self._first_byte_expired)

    def response_started(self) -> None:
        """Record that the response has started. The limit `first_byte` then no longer applies.

        From now on, each piece must arrive within `idle` seconds after the piece before it.
        """
        self.cancel()
        if self._idle:
            self._schedule_check(asyncio.get_running_loop().time())

    def data_received(self) -> None:
        """Record that a piece of the response has arrived. The next one must arrive within `idle` seconds."""
        self._last_data_at = asyncio.get_running_loop().time()

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule_check(self, last_data_at: float) -> None:
        self._last_data_at = last_data_at
        loop = asyncio.get_running_loop()
        self._timer = loop.call_at(last_data_at + self._idle, self._check)

    def _check(self) -> None:
        if asyncio.get_running_loop().time() - self._last_data_at >= self._idle:
            self._fail(
                TimeoutError(f"The backend sent nothing for {self._idle:g} s in the middle of its response.")
            )
        else:
            self._schedule_check(self._last_data_at)

    def _first_byte_expired(self) -> None:
        self._fail(TimeoutError(f"The backend did not begin to answer within {self._first_byte:g} s."))


def _ignore(_: Exception) -> None:
    """Ignore the error. This is the callback of an `IdleTimeout` until `start` sets another one."""


def _resolve(response: asyncio.Future[BackendResponse], ended: BackendResponse | Exception) -> None:
    if response.done():  # cancelled meanwhile
        return
    if isinstance(ended, BackendResponse):
        response.set_result(ended)
    else:
        response.set_exception(ended)
