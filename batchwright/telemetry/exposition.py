"""What /metrics answers: our metrics, and the SDK's, which its runtime serves on a loopback port."""

import asyncio
import re
import socket
from asyncio import StreamReader, StreamWriter
from collections.abc import Callable
from contextlib import suppress

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from batchwright.telemetry.metrics import Metrics

_PATIENCE_SECONDS = 5.0
LOOPBACK = "127.0.0.1"
CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4  # of the SDK's too (S2-R2)
_QUESTION = b"GET /metrics HTTP/1.1\r\nHost: batchwright\r\n\r\n"
_GOOD = re.compile(rb"HTTP/1\.1 200 .*\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE | re.DOTALL)


def sdk_address() -> str:
    """Where the SDK's runtime may serve its metrics: a port that is free now."""
    with socket.socket() as found:
        found.bind((LOOPBACK, 0))
        return f"{LOOPBACK}:{found.getsockname()[1]}"


class SdkMetrics:
    """Asked over one connection that is kept; an empty address: there are none.

    An HTTP client would cost more than all of our own metrics.
    """

    def __init__(self, address: str = "") -> None:
        self._address = address
        self._connection: tuple[StreamReader, StreamWriter] | None = None
        self._turn = asyncio.Lock()  # scrapes at once ask one after the other

    async def text(self, asked: Callable[[], None] = lambda: None) -> bytes:
        """Nothing while its server does not answer. Whenever it was asked anew, `asked` is called."""
        if not self._address:
            return b""
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS), self._turn:
                return await self._answer(asked)
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError):
            return b""

    async def _answer(self, asked: Callable[[], None]) -> bytes:
        if self._connection is not None:
            try:
                return await self._ask(*self._connection, asked)
            except (OSError, EOFError):
                pass  # it was closed meanwhile
        host, _, port = self._address.rpartition(":")
        return await self._ask(*await asyncio.open_connection(host, int(port)), asked)

    async def _ask(self, reader: StreamReader, writer: StreamWriter, asked: Callable[[], None]) -> bytes:
        """Keeps the connection for the next one, but not with half an answer in it."""
        self._connection = None
        try:
            writer.write(_QUESTION)
            asked()
            head = _GOOD.match(await reader.readuntil(b"\r\n\r\n"))
            if head is None:
                raise ValueError(f"{self._address} has no metrics of a length that it says")
            text = await reader.readexactly(int(head[1]))
        except BaseException:
            writer.close()
            raise
        self._connection = reader, writer
        return text

    async def close(self) -> None:
        if self._connection is not None:
            (_, writer), self._connection = self._connection, None
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


async def exposition(metrics: Metrics, sdk: SdkMetrics) -> bytes:
    """Ours alone while the SDK's server does not answer. It writes its own while we write ours."""
    ours: list[bytes] = []

    def write() -> None:
        ours[:] = metrics.pieces()

    theirs = await sdk.text(asked=write)
    if not ours:
        write()
    return b"".join([*ours, theirs])
