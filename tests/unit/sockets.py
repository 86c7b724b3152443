"""Servers on real sockets that misbehave in one way at a time, and the client that asks them."""

import asyncio
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

from batchwright.inference.client import InferenceClient
from batchwright.inference.engine import Target
from batchwright.inference.opening import open_engine
from batchwright.inference.outcomes import Outcome
from tests.fakes.settings import load

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"


@asynccontextmanager
async def served(serve: Serve, *, tls: ssl.SSLContext | None = None) -> AsyncGenerator[Target]:
    """A server on a free port that does with each connection what `serve` says."""
    tasks: set[asyncio.Task[None]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await serve(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=tls)
    host, port = server.sockets[0].getsockname()[:2]
    try:
        yield Target.of(f"http://{host}:{port}/v1/chat/completions")
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def client(engine: str = "socket", **settings: object) -> AsyncGenerator[InferenceClient]:
    chosen = load(http_engine=engine, **settings)
    opened = InferenceClient(open_engine(chosen), chosen)
    try:
        yield opened
    finally:
        await opened.aclose()
        await asyncio.sleep(0)  # closed sockets are let go in the loop's next round


async def read_request(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Head and body of one request."""
    head = await reader.readuntil(b"\r\n\r\n")
    told = [line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")]
    return head, await reader.readexactly(int(told[0].split(b":")[1]) if told else 0)


def answering(*pieces: bytes) -> Serve:
    """Reads a request, writes `pieces`, closes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        for piece in pieces:
            writer.write(piece)
            await writer.drain()

    return serve


async def ask(serve: Serve, engine: str = "socket", **settings: object) -> Outcome:
    async with served(serve) as url, client(engine, **settings) as sender:
        return await sender.send(url, b"{}", "batch_req_1")
