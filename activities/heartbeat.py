"""Send heartbeats while an activity runs. All activities use this, except those that run slices.

The heartbeats also contain a number for the next attempt: how many attempts ended with an unknown exception.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence

from temporalio import activity

from batchwright.background import log_failure

_HEARTBEATS_PER_TIMEOUT = 3
# Heartbeat detail: number of attempts of the step that ended with an unknown exception.
_FAILURE_COUNT_PREFIX = "unexpected failures: "


def previous_failures(details: Sequence[object]) -> int:
    """Return how many earlier attempts of the activity ended with an unknown exception.

    Args:
        details: heartbeat details of the previous attempt, which contain this number if it is not 0.
    """
    counts = [detail.removeprefix(_FAILURE_COUNT_PREFIX) for detail in details if isinstance(detail, str)]
    return max((int(count) for count in counts if count.isdecimal()), default=0)


def failure_count_details(failures: int) -> tuple[str, ...]:
    """Return the heartbeat details that pass the number of failures to the next attempt; empty for 0.

    Send these details with every heartbeat, because Temporal keeps only the details of the last heartbeat.
    """
    return (f"{_FAILURE_COUNT_PREFIX}{failures}",) if failures else ()


@contextlib.asynccontextmanager
async def heartbeating() -> AsyncGenerator[None]:
    """Context manager that sends heartbeats while an activity runs, three per heartbeat timeout.

    The first attempt of an activity sends its first heartbeat after a third of the timeout. So a short
    activity sends no heartbeat. Every later attempt sends its first heartbeat immediately. If the activity
    has no heartbeat timeout, nothing is sent.
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
