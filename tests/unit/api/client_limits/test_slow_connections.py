"""The API's implementation of HTTP with slow clients, served in the test's process."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn import Config
from uvicorn.server import ServerState

from batchwright.api.client_limits.slow_connections import BoundedProtocol

REQUEST = b"GET / HTTP/1.1\r\nHost: api\r\n"


class Watched(BoundedProtocol):
    def __init__(self, app: ASGIApp) -> None:
        config = Config(app, ws="none", lifespan="off", log_config=None)
        super().__init__(config, ServerState(), {})
        self.was_too_late, self.was_paused, self.was_lost = asyncio.Event(), asyncio.Event(), asyncio.Event()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.flow.read_paused:
            self.was_paused.set()

    def _on_deadline(self) -> None:
        super()._on_deadline()
        self.was_too_late.set()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.was_lost.set()


@asynccontextmanager
async def connected(
    protocol: Watched,
) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Context manager that yields the client's side of a connection to `protocol`."""
    server = await asyncio.get_running_loop().create_server(lambda: protocol, "127.0.0.1", 0)
    async with server, asyncio.timeout(240):
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        yield reader, writer
        writer.close()
        await writer.wait_closed()
        await protocol.was_lost.wait()


async def test_the_header_timeout_does_not_interrupt_the_previous_response() -> None:
    begun = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        protocol.seconds_for_headers = 0  # of the next request
        begun.set()
        await protocol.was_too_late.wait()
        await Response("whole")(scope, receive, send)

    protocol = Watched(app)
    async with connected(protocol) as (reader, writer):
        writer.write(REQUEST + b"\r\n")
        await begun.wait()
        writer.write(REQUEST)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 ")
        assert await reader.readexactly(5) == b"whole"


async def test_a_refusal_reaches_a_client_whose_body_is_not_read() -> None:
    size = 12 * 1024 * 1024  # more than the kernel's buffers

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await protocol.was_paused.wait()
        await Response("refused", 401, {"Connection": "close"})(scope, receive, send)

    protocol = Watched(app)
    async with connected(protocol) as (reader, writer):
        writer.write(b"POST / HTTP/1.1\r\nHost: api\r\nContent-Length: %d\r\n\r\n" % size + b"x" * size)
        await writer.drain()
        assert (await reader.read()).startswith(b"HTTP/1.1 401 ")


async def test_a_connection_on_which_no_request_begins_is_closed() -> None:
    protocol = Watched(Response("whole"))
    protocol.seconds_for_headers = 0
    async with connected(protocol) as (reader, _):
        assert await reader.read() == b""


async def test_an_idle_connection_is_kept_longer_than_clients_and_load_balancers_keep_it() -> None:
    protocol = Watched(Response("whole"))
    async with connected(protocol) as (reader, writer):
        writer.write(REQUEST + b"\r\n")
        await reader.readuntil(b"whole")
        closing = protocol.timeout_keep_alive_task
        assert closing is not None
        assert closing.when() - asyncio.get_running_loop().time() > 60
