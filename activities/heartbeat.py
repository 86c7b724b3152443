"""Heartbeats of all activities except slices. They only show that the process is alive."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator

from temporalio import activity

from batchwright.background import log_failure

_HEARTBEATS_PER_TIMEOUT = 3


@contextlib.asynccontextmanager
async def heartbeating() -> AsyncGenerator[None]:
    """Context manager that sends heartbeats while an activity runs, three per heartbeat timeout.

    The first attempt of an activity sends its first heartbeat after a third of the timeout. So a short
    activity sends no heartbeat. Every later attempt sends its first heartbeat at once. If the activity has no
    heartbeat timeout, nothing is sent.
    """
    info = activity.info()
    if not info.heartbeat_timeout:
        yield
        return
    seconds = info.heartbeat_timeout.total_seconds() / _HEARTBEATS_PER_TIMEOUT
    beats = asyncio.create_task(_send_heartbeats(seconds, at_once=info.attempt > 1))
    beats.add_done_callback(log_failure)  # if this task fails, the heartbeat timeout ends the attempt
    try:
        yield
    finally:
        beats.cancel()
        await asyncio.gather(beats, return_exceptions=True)


async def _send_heartbeats(seconds: float, *, at_once: bool) -> None:
    if not at_once:
        await asyncio.sleep(seconds)
    while True:
        activity.heartbeat()
        await asyncio.sleep(seconds)
