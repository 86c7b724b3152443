"""Servers on real sockets that each misbehave in one way, and a client that sends requests to them."""

import asyncio
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

from batchwright.inference.backend_client import InferenceClient
from batchwright.inference.client_pool import open_transport
from batchwright.inference.request_outcome import Outcome
from batchwright.inference.transport.base import TargetUrl
from tests.fakes.settings import load

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"


@asynccontextmanager
async def served(
    serve: Serve, *, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1"
) -> AsyncGenerator[TargetUrl]:
    """Run a server on a free port that handles each connection with `serve`, and yield its URL.

    The server and all connections are closed at the end.
    """
    loop = asyncio.get_running_loop()
    tasks: dict[asyncio.StreamWriter, asyncio.Task[None]] = {}

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks[writer] = loop.create_task(handle(reader, writer))

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(accept, host, 0, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    try:
        yield TargetUrl.of(f"http://127.0.0.1:{port}/v1/chat/completions")
    finally:
        loop.remove_reader(server.sockets[0].fileno())  # a closed server would lose what it has accepted
        for _ in range(3):
            await asyncio.sleep(0)  # `accept` is called in the third round after a connection was accepted
        server.close()
        for task in tasks.values():
            task.cancel()
        for end in await asyncio.gather(*tasks.values(), return_exceptions=True):
            if isinstance(end, Exception):
                loop.call_exception_handler({"message": "A test's server failed.", "exception": end})
        for writer in tasks:
            writer.transport.abort()  # `close` waits for a peer that reads nothing
        await asyncio.gather(*(writer.wait_closed() for writer in tasks), return_exceptions=True)


@asynccontextmanager
async def client(engine: str = "socket", **settings: object) -> AsyncGenerator[InferenceClient]:
    chosen = load(http_engine=engine, **settings)
    opened = InferenceClient(open_transport(chosen), chosen)
    try:
        yield opened
    finally:
        await opened.aclose()
        await asyncio.sleep(0)  # closed sockets are let go in the loop's next round


async def read_request(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Read one request, and return its head and its body as bytes."""
    head = await reader.readuntil(b"\r\n\r\n")
    length_headers = [line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")]
    return head, await reader.readexactly(int(length_headers[0].split(b":")[1]) if length_headers else 0)


def answering(*pieces: bytes) -> Serve:
    """Return a handler that reads a request, sends `pieces`, and closes the connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        for piece in pieces:
            writer.write(piece)
            await writer.drain()

    return serve


def endless(start: bytes, piece: bytes) -> Serve:
    """Return a handler that sends `start`, and then repeats `piece` until the client disconnects."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(start)
        while not writer.transport.is_closing():
            writer.write(piece)
            await writer.drain()

    return serve


async def ask(serve: Serve, engine: str = "socket", **settings: object) -> Outcome:
    async with served(serve) as url, client(engine, **settings) as sender:
        return await sender.send(url, b"{}", "batch_req_1")
