"""uvicorn's HTTP protocol, with limits for slow, idle or non-reading clients, and for headers that never end.

The size of complete headers and the speed of bodies are limited in `middleware/header_size_and_body_speed`.
"""

import asyncio

import orjson
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

MAX_PENDING_HEADER_BYTES = 64 * 1024
MAX_UNWANTED_BYTES = 16 * 1024 * 1024  # maximum bytes of a body that are read after its response
LINGER_SECONDS = 5.0


class BoundedProtocol(HttpToolsProtocol):
    """A version of uvicorn's HTTP protocol that also rejects malformed and slow requests, with errors in the
    API's format.

    If the server responds before it has read the whole request, the client might lose the response when the
    connection closes. So the connection *lingers* before it closes: it reads and drops data, for at most
    `LINGER_SECONDS`.
    """

    # Idle time after which a connection is closed. Clients and load balancers, most of which have 5 to 60 s,
    # should close it first, because a request that is sent while the server closes the connection is lost.
    seconds_idle = 75
    seconds_for_headers = 15.0  # maximum time until a request's headers are complete
    seconds_stalled = 60.0  # maximum time in which a client reads nothing of its response
    seconds_lingering = LINGER_SECONDS
    _in_headers = False
    _pending = 0
    _unwanted = 0
    lingers = False
    _deadline: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self.timeout_keep_alive = self.seconds_idle
        self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_deadline()
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.lingers:
            self._unwanted += len(data)
            if self._unwanted > MAX_UNWANTED_BYTES:
                self.transport.close()
            return
        before = self._in_headers
        super().data_received(data)
        if before and self._in_headers:
            self._pending += len(data)
        if self._pending > MAX_PENDING_HEADER_BYTES:
            self._reject(431, "The headers of this request are too large.")
        elif self._is_idle:
            # Bytes between a response and the next request are the rest of a body, or blank lines.
            self._unwanted += len(data)
            if self._unwanted > MAX_UNWANTED_BYTES:
                self._linger()
            elif self._deadline is None:
                self._expect_headers()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_headers, self._pending = True, 0
        self._expect_headers()

    def on_headers_complete(self) -> None:
        self._in_headers, self._pending, self._unwanted = False, 0, 0
        self._cancel_deadline()
        super().on_headers_complete()
        self.cycle.transport = _RequestTransport(self)  # pyright: ignore[reportAttributeAccessIssue]

    def on_response_complete(self) -> None:
        if self.lingers:
            self.server_state.total_requests += 1
            return
        super().on_response_complete()
        if self.cycle.more_body and not self.transport.is_closing():
            self._expect_headers()  # the rest of this body must arrive in the same time

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled = self.loop.call_later(self.seconds_stalled, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def send_400_response(self, msg: str) -> None:
        self._reject(400, msg)

    @property
    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete  # pyright: ignore[reportUnnecessaryComparison]

    def close_answered(self) -> None:
        """Close the connection after a response. If the request was not read completely, first linger: read
        and drop data for a short time.
        """
        if self.cycle.more_body:
            self._linger()
        else:
            self.transport.close()

    def _linger(self) -> None:
        """Stop sending, and drop all received data until the client closes the connection.

        The server closes the connection itself after `LINGER_SECONDS`, or after `MAX_UNWANTED_BYTES` bytes.
        """
        if self.lingers or self.transport.is_closing():
            return
        self.lingers, self._unwanted = True, 0
        self._cancel_deadline()
        self._unset_keepalive_if_required()
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._deadline = self.loop.call_later(self.seconds_lingering, self.transport.close)

    def _expect_headers(self) -> None:
        self._cancel_deadline()
        self._deadline = self.loop.call_later(self.seconds_for_headers, self._on_deadline)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _on_deadline(self) -> None:
        self._deadline = None
        if not self._is_idle:  # headers of the next request arrive while this response is sent
            return
        if self._in_headers:
            self._reject(408, "The headers of this request did not come in time.")
        elif self.cycle is None:  # pyright: ignore[reportUnnecessaryComparison]
            self.transport.close()
        else:
            self.close_answered()

    def _reject(self, status: int, message: str) -> None:
        """Send an error response to an incomplete or malformed request. Then linger (read and drop data for a
        short time), and close the connection.
        """
        if self.lingers or self.transport.is_closing():
            return
        details = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
        body = orjson.dumps({"error": details})
        head = [
            STATUS_LINE[status],
            b"content-type: application/json\r\nconnection: close\r\n",
            b"content-length: %d\r\n\r\n" % len(body),
        ]
        self.transport.write(b"".join(head) + body)
        self._linger()


class _RequestTransport:
    """The connection through which uvicorn sends the response to one request.

    While the connection lingers (waits to be closed), written data is dropped.
    """

    def __init__(self, protocol: BoundedProtocol) -> None:
        self._protocol = protocol

    def write(self, data: bytes) -> None:
        if not self._protocol.lingers:
            self._protocol.transport.write(data)

    def is_closing(self) -> bool:
        return self._protocol.lingers or self._protocol.transport.is_closing()

    def close(self) -> None:
        self._protocol.close_answered()
