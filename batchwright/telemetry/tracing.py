"""Turns tracing on if a trace collector is configured. Otherwise OpenTelemetry is not even imported."""

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
    """Return the object that creates the trace spans of this process; None if tracing is off."""
    return _open


def record_error(error: BaseException) -> None:
    """Record an error on the current trace span. Do nothing if tracing is off."""
    if _open is not None:
        _open.record_error(error)


@asynccontextmanager
async def open_tracing(settings: Settings, service: str, metrics: Metrics) -> AsyncGenerator[None]:
    """Context manager that turns tracing on for its block, if a trace collector is configured.

    At the end of the block, the remaining spans are sent, for at most a few seconds. If the collector fails,
    spans are lost and counted.
    """
    global _open
    if not settings.traces_url:
        yield
        return
    from batchwright.telemetry.span_export import open_provider
    from batchwright.telemetry.spans import Spans

    provider, ids = open_provider(settings, service, metrics)
    _open = Spans(provider, ids, settings)
    try:
        yield
    finally:
        _open = None
        await asyncio.to_thread(provider.close)
