"""What /metrics answers: our metrics, and the SDK's, which its runtime serves on a loopback port."""

import asyncio
import socket

import aiohttp
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from batchwright.telemetry.metrics import Metrics

_PATIENCE = aiohttp.ClientTimeout(total=5)
LOOPBACK = "127.0.0.1"
CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4  # of the SDK's too (S2-R2)


def sdk_address() -> str:
    """Where the SDK's runtime may serve its metrics: a port that is free now."""
    with socket.socket() as found:
        found.bind((LOOPBACK, 0))
        return f"{LOOPBACK}:{found.getsockname()[1]}"


class SdkMetrics:
    """Asked over one connection that is kept; an empty address: there are none."""

    def __init__(self, address: str = "") -> None:
        self._address = address
        self._http: aiohttp.ClientSession | None = None

    async def text(self) -> bytes:
        """Nothing while its server does not answer."""
        if not self._address:
            return b""
        if self._http is None:
            self._http = aiohttp.ClientSession(timeout=_PATIENCE)
        try:
            async with self._http.get(f"http://{self._address}/metrics") as got:
                return await got.read()
        except (aiohttp.ClientError, TimeoutError):
            return b""

    async def close(self) -> None:
        if self._http is not None:
            await self._http.close()


async def exposition(metrics: Metrics, sdk: SdkMetrics) -> bytes:
    """Ours alone while the SDK's server does not answer. It writes its own while we write ours."""
    async with asyncio.TaskGroup() as group:
        theirs = group.create_task(sdk.text())
        await asyncio.sleep(0)  # the question is under way
        ours = metrics.pieces()
    return b"".join([*ours, theirs.result()])
