"""Heartbeats of activities whose progress needs no owner: they say only that the process lives."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator

from temporalio import activity

_BEATS_PER_TIMEOUT = 3


@contextlib.asynccontextmanager
async def beating() -> AsyncGenerator[None]:
    """Heartbeats at a third of the activity's heartbeat timeout until the context ends; none without one.

    A first attempt that ends before sends none: each costs the server a write.
    """
    info = activity.info()
    if not info.heartbeat_timeout:
        yield
        return
    seconds = info.heartbeat_timeout.total_seconds() / _BEATS_PER_TIMEOUT
    beats = asyncio.create_task(_beat(seconds, at_once=info.attempt > 1))
    try:
        yield
    finally:
        beats.cancel()
        await asyncio.gather(beats, return_exceptions=True)


async def _beat(seconds: float, *, at_once: bool) -> None:
    if not at_once:
        await asyncio.sleep(seconds)
    while True:
        activity.heartbeat()
        await asyncio.sleep(seconds)
