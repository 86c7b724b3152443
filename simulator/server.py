"""HTTP/1.1 server with one asyncio protocol object for each connection, and without tasks for requests."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import cast

import httptools

from batchwright.simulator.exchange import HttpExchange, HttpRequest, HttpResponse, error_response

REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 429: "Too Many Requests",
           500: "Internal Server Error", 503: "Service Unavailable"}  # fmt: skip
MAX_BODY_BYTES = 64 * 1024 * 1024
Handler = Callable[[HttpExchange], None]


def encode_response(response: HttpResponse, *, keep_alive: bool) -> tuple[bytes, bytes]:
    """Return the status line and headers of an HTTP response, and its body, both as bytes."""
    lines = [f"HTTP/1.1 {response.status} {REASONS.get(response.status, 'Status')}\r\ncontent-type: "]
    lines.append(response.headers.get("content-type", "application/json"))
    lines += [f"\r\n{name}: {value}" for name, value in response.headers.items() if name != "content-type"]
    lines.append(f"\r\ncontent-length: {len(response.body)}\r\n")
    lines.append("\r\n" if keep_alive else "connection: close\r\n\r\n")
    return "".join(lines).encode("latin-1"), response.body


class PipelinedExchange:
    """One request on a connection. The handler ends the request with `respond`, `cut` or `abort`."""

    __slots__ = ("_connection", "keep_alive", "on_disconnect", "request")

    def __init__(self, connection: "HttpConnection", request: HttpRequest, keep_alive: bool) -> None:
        self._connection = connection
        self.request = request
        self.keep_alive = keep_alive
        self.on_disconnect: Callable[[], None] | None = None

    def respond(self, response: HttpResponse) -> None:
        head, body = encode_response(response, keep_alive=self.keep_alive)
        self._connection.finish(head + body, close=not self.keep_alive)

    def cut(self, response: HttpResponse) -> None:
        head, body = encode_response(response, keep_alive=self.keep_alive)
        self._connection.finish(head + body[: len(body) // 2], close=True)

    def abort(self) -> None:
        self._connection.abort()


class HttpConnection(asyncio.Protocol):
    """An HTTP connection to a client. It parses requests, and calls `handler` for each, one after the other.

    A client may send further requests before it gets a response (pipelining). These requests wait in a queue.
    """

    def __init__(self, handler: Handler, connections: set["HttpConnection"]) -> None:
        self._handler = handler
        self._connections = connections
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[PipelinedExchange] = deque()
        self._current: PipelinedExchange | None = None
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._parts: list[bytes] = []
        self._size = 0

    # Called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses of asyncio's, so isinstance does not work.
        self._transport = cast(asyncio.Transport, transport)
        self._connections.add(self)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._reject(f"This is not HTTP/1.1: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._connections.discard(self)
        self._waiting.clear()
        exchange, self._current = self._current, None
        if exchange is not None and exchange.on_disconnect is not None:
            exchange.on_disconnect()

    # Called by httptools

    def on_message_begin(self) -> None:
        self._url, self._headers, self._parts, self._size = b"", {}, [], 0

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        if self._headers.get(b"expect", b"").lower() == b"100-continue" and self._transport:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._size += len(body)
        if self._size <= MAX_BODY_BYTES:
            self._parts.append(body)

    def on_message_complete(self) -> None:
        if self._size > MAX_BODY_BYTES:
            return self._reject(f"The body is larger than {MAX_BODY_BYTES} bytes.")
        path, _, query = self._url.decode("latin-1").partition("?")
        body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        request = HttpRequest(self._parser.get_method().decode(), path, query, self._headers, body)
        self._waiting.append(PipelinedExchange(self, request, self._parser.should_keep_alive()))
        self._next()

    # Called by the exchange

    def finish(self, data: bytes, *, close: bool) -> None:
        if self._transport is None:
            return
        self._transport.write(data)
        self._current = None
        if close:
            self._waiting.clear()
            self._transport.close()
        else:
            self._next()

    def abort(self) -> None:
        self._current = None
        if self._transport is not None:
            self._transport.abort()

    def _next(self) -> None:
        if self._current is None and self._waiting:
            self._current = self._waiting.popleft()
            self._handler(self._current)

    def _reject(self, message: str) -> None:
        if self._transport is not None:
            head, body = encode_response(error_response(400, message), keep_alive=False)
            self.finish(head + body, close=True)


class Server:
    """An HTTP server. It listens at `url` from the call of `start` until the call of `stop`."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._connections: set[HttpConnection] = set()
        self._server: asyncio.Server | None = None
        self.url = ""

    async def start(self, host: str, port: int) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: HttpConnection(self._handler, self._connections), host, port, backlog=2048
        )
        bound: int = self._server.sockets[0].getsockname()[1]
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{bound}"

    async def stop(self) -> None:
        """Stop listening, and close all connections immediately. Requests in flight get no response."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.abort()
