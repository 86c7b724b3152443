"""Traces: off, and OpenTelemetry not even imported, unless a collector is set (S0-55)."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from batchwright.settings import Settings
from batchwright.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from batchwright.telemetry.spans import Spans

_open: "Spans | None" = None


def spans() -> "Spans | None":
    """What makes this process's spans; None while tracing is off."""
    return _open


def failed(error: BaseException) -> None:
    """Notes an error on the span that is current."""
    if _open is not None:
        _open.failed(error)


@asynccontextmanager
async def tracing(settings: Settings, service: str, metrics: Metrics) -> AsyncGenerator[None]:
    """Traces until the block ends, then sends what is left, for some seconds at most.

    A collector that fails or is slow costs spans, which are counted, and nothing else.
    """
    global _open
    if not settings.traces_url:
        yield
        return
    from batchwright.telemetry.export import open_provider
    from batchwright.telemetry.spans import Spans

    provider, ids = open_provider(settings, service, metrics)
    _open = Spans(provider, ids, settings)
    try:
        yield
    finally:
        _open = None
        await asyncio.to_thread(provider.close)
