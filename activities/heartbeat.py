"""Heartbeats of activities whose progress needs no owner: they say only that the process lives."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator

from temporalio import activity

_BEATS_PER_TIMEOUT = 3


@contextlib.asynccontextmanager
async def beating() -> AsyncGenerator[None]:
    """Heartbeats at a third of the activity's heartbeat timeout until the context ends; none without one."""
    timeout = activity.info().heartbeat_timeout
    if not timeout:
        yield
        return
    beats = asyncio.create_task(_beat(timeout.total_seconds() / _BEATS_PER_TIMEOUT))
    try:
        yield
    finally:
        beats.cancel()
        await asyncio.gather(beats, return_exceptions=True)


async def _beat(seconds: float) -> None:
    while True:
        activity.heartbeat()
        await asyncio.sleep(seconds)
