"""Reads an event stream of the API in the test's process, without a network."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

from fastapi import FastAPI
from starlette.types import Message, Scope


class EventStreamClient:
    """A client of one event stream.

    `status` and `headers` belong to the response. `next` returns one piece of the body as it was sent.
    """

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self._started = asyncio.Event()
        self._pieces = asyncio.Queue[bytes | None]()
        self._reads, self._gone = asyncio.Event(), asyncio.Event()
        self._reads.set()

    async def started(self) -> None:
        await self._started.wait()

    async def next(self) -> bytes:
        """Return the next piece of the response body. Fail if the stream has ended."""
        piece = await self._pieces.get()
        assert piece is not None, "the stream has ended"
        return piece

    async def rest(self) -> list[bytes]:
        """Return all further pieces until the stream has ended."""
        rest: list[bytes] = []
        while (piece := await self._pieces.get()) is not None:
            rest.append(piece)
        return rest

    def stop_reading(self) -> None:
        """Stop reading, so that the server blocks at the next piece that it sends."""
        self._reads.clear()

    def go_on_reading(self) -> None:
        self._reads.set()

    def disconnect(self) -> None:
        self._gone.set()

    async def receive(self) -> Message:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            self._started.set()
            return
        await self._reads.wait()
        if body := message.get("body"):
            self._pieces.put_nowait(body)
        if not message.get("more_body", False):
            self._pieces.put_nowait(None)


@asynccontextmanager
async def listening(app: FastAPI, path: str, **headers: str) -> AsyncGenerator[EventStreamClient]:
    """Send a GET request to `path`. Yield the client when the response has started.

    Args:
        path: path, and the query if there is one.
        headers: request headers. Their names have underscores instead of hyphens.
    """
    client = EventStreamClient()
    scope: Scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": path.partition("?")[0],
        "raw_path": path.partition("?")[0].encode(),
        "query_string": path.partition("?")[2].encode(),
        "root_path": "",
        "headers": [
            (b"host", b"api"),
            *((name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()),
        ],
        "client": ("127.0.0.1", 1),
        "server": ("api", 80),
    }
    call = asyncio.create_task(app(scope, client.receive, client.send))
    started = asyncio.create_task(client.started())
    await asyncio.wait([call, started], return_when=asyncio.FIRST_COMPLETED)
    started.cancel()
    if call.done():
        await call  # raises the error of a call that sent no response
    try:
        yield client
    finally:
        client.disconnect()
        client.go_on_reading()
        with suppress(asyncio.CancelledError):
            await call
