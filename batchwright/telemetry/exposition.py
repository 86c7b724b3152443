"""Builds the response to GET /metrics from the metrics of Batchwright and of the Temporal SDK.

The SDK has its own HTTP server for its metrics, at a loopback address.
"""

import asyncio
import re
import socket
from asyncio import StreamReader, StreamWriter
from collections.abc import Callable
from contextlib import suppress

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from batchwright.telemetry.metrics import Metrics

_TIMEOUT_SECONDS = 5.0
LOOPBACK = "127.0.0.1"
CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4  # the SDK's metrics have the same type
_REQUEST = b"GET /metrics HTTP/1.1\r\nHost: batchwright\r\n\r\n"
_RESPONSE_HEAD = re.compile(rb"HTTP/1\.1 200 .*\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE | re.DOTALL)


def free_sdk_address() -> str:
    """Return a loopback address `host:port` at which the Temporal SDK can serve its metrics.

    The port is free now, but it is not reserved.
    """
    with socket.socket() as found:
        found.bind((LOOPBACK, 0))
        return f"{LOOPBACK}:{found.getsockname()[1]}"


class SdkMetricsClient:
    """A client that reads the Temporal SDK's metrics over one keep-alive connection.

    `address` is the address `host:port` of the SDK's metrics; empty if the SDK serves no metrics.
    """

    def __init__(self, address: str = "") -> None:
        self._address = address
        self._connection: tuple[StreamReader, StreamWriter] | None = None
        self._turn = asyncio.Lock()  # concurrent scrapes share the connection one after the other

    async def fetch(self, on_sent: Callable[[], None] = lambda: None) -> bytes:
        """Return the metrics of the Temporal SDK as text.

        The text is empty in two cases:

        - The SDK serves no metrics.
        - The SDK does not send a valid response within a few seconds.

        If the SDK has closed the keep-alive connection, send the request again over a new connection.

        Args:
            on_sent: called each time the request was sent. The function can do other work while the SDK
                responds.
        """
        if not self._address:
            return b""
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS), self._turn:
                return await self._fetch(on_sent)
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError):
            return b""

    async def close(self) -> None:
        if self._connection is not None:
            (_, writer), self._connection = self._connection, None
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _fetch(self, on_sent: Callable[[], None]) -> bytes:
        if self._connection is not None:
            try:
                return await self._exchange(*self._connection, on_sent)
            except (OSError, EOFError):
                pass  # the server closed it since the last scrape
        host, _, port = self._address.rpartition(":")
        return await self._exchange(*await asyncio.open_connection(host, int(port)), on_sent)

    async def _exchange(
        self, reader: StreamReader, writer: StreamWriter, on_sent: Callable[[], None]
    ) -> bytes:
        """Request the metrics of Temporal's SDK over this connection, and return the body of the response.

        If the response is invalid or incomplete, close the connection and raise an exception.
        """
        self._connection = None
        try:
            writer.write(_REQUEST)
            on_sent()
            head = _RESPONSE_HEAD.match(await reader.readuntil(b"\r\n\r\n"))
            if head is None:
                raise ValueError(f"{self._address} did not return metrics with a content-length.")
            text = await reader.readexactly(int(head[1]))
        except BaseException:
            writer.close()
            raise
        self._connection = reader, writer
        return text


async def render_metrics(metrics: Metrics, sdk: SdkMetricsClient) -> bytes:
    """Return the metrics of Batchwright, and after them the Temporal SDK's metrics if they can be read."""
    parts: list[bytes] = []

    def render() -> None:
        parts[:] = metrics.render_parts()

    sdk_text = await sdk.fetch(on_sent=render)
    if not parts:
        render()
    return b"".join([*parts, sdk_text])
