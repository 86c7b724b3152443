"""TCP proxy that can cut, stall and delay its connections while it runs."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator

LOOPBACK = "127.0.0.1"
_PIECE_BYTES = 64 * 1024


class Proxy:
    """A TCP proxy in front of the server at `port` on this machine.

    It forwards all bytes until a test disturbs it.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._open = asyncio.Event()
        self._open.set()
        self._delay = 0.0
        self._refuses = False
        self._writers: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.port = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, LOOPBACK, 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        self.cut()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    def lead_to(self, port: int) -> None:
        """Forward new connections to `port` from now on."""
        self._target = port

    def cut(self) -> None:
        """Reset all connections. New ones are accepted."""
        for writer in self._writers:
            writer.transport.abort()

    @contextlib.asynccontextmanager
    async def refusing(self) -> AsyncGenerator[None]:
        """Context manager that resets all connections, and each new connection as soon as it is opened."""
        self._refuses = True
        self.cut()
        try:
            yield
        finally:
            self._refuses = False

    @contextlib.asynccontextmanager
    async def closed(self) -> AsyncGenerator[None]:
        """Context manager that resets all connections and stops listening, as if the server were stopped."""
        assert self._server is not None
        self._server.close()
        self.cut()
        try:
            yield
        finally:
            self._server = await asyncio.start_server(self._accept, LOOPBACK, self.port)

    @contextlib.asynccontextmanager
    async def stalled(self) -> AsyncGenerator[None]:
        """Context manager that keeps connections open but forwards nothing, as if the other host was down."""
        self._open.clear()
        try:
            yield
        finally:
            self._open.set()

    @contextlib.asynccontextmanager
    async def delayed(self, seconds: float) -> AsyncGenerator[None]:
        """Context manager that forwards all data `seconds` later."""
        self._delay = seconds
        try:
            yield
        finally:
            self._delay = 0.0

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        self._writers.add(writer)
        try:
            await self._connect(reader, writer)
        except (OSError, asyncio.CancelledError):  # asyncio would log that `stop` has cancelled this task
            writer.transport.abort()
        finally:
            self._writers.discard(writer)
            self._serving.discard(task)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refuses:
            writer.transport.abort()
            return
        await self._open.wait()
        there, back = await asyncio.open_connection(LOOPBACK, self._target)
        self._writers.add(back)
        try:
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(self._pump(reader, back))
                pumps.create_task(self._pump(there, writer))
        finally:
            self._writers.discard(back)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(_PIECE_BYTES):
                await self._open.wait()
                if self._delay:
                    await asyncio.sleep(self._delay)
                writer.write(data)
                await writer.drain()
        except OSError:
            writer.transport.abort()
        else:
            writer.close()
