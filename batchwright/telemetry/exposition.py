"""What /metrics answers: our metrics, and the SDK's, which its runtime serves on a loopback port."""

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


async def exposition(metrics: Metrics, sdk_address: str) -> bytes:
    """Ours alone while the SDK's server does not answer."""
    return metrics.shown() + await _sdk_metrics(sdk_address)


async def _sdk_metrics(address: str) -> bytes:
    if not address:
        return b""
    try:
        async with (
            aiohttp.ClientSession(timeout=_PATIENCE) as http,
            http.get(f"http://{address}/metrics") as got,
        ):
            return await got.read()
    except (aiohttp.ClientError, TimeoutError):
        return b""
