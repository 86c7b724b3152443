"""Whether this attempt still owns its slice: heartbeats the server has acknowledged, every 2 s."""

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Protocol

from temporalio import activity
from temporalio.client import AsyncActivityCancelledError, Client
from temporalio.service import RPCError, RPCStatusCode

from batchwright.contracts.execution import SliceResult

logger = logging.getLogger(__name__)
BEAT_SECONDS = 2.0
_SAFETY_SECONDS = 5.0


class Beat(Protocol):
    """Tells the server the attempt lives. Raises AsyncActivityCancelledError, RPCError."""

    async def __call__(self, details: SliceResult) -> None: ...


class Ownership:
    """`may_send` is false once the last acknowledged beat is old enough for the slice to be another's."""

    def __init__(self, beat: Beat, heartbeat_timeout: timedelta | None) -> None:
        self._beat = beat
        timeout = heartbeat_timeout.total_seconds() if heartbeat_timeout else float("inf")
        self._trusted = max(timeout - _SAFETY_SECONDS, BEAT_SECONDS)
        self._acknowledged = time.monotonic()  # the attempt was just handed out

    @property
    def may_send(self) -> bool:
        return time.monotonic() - self._acknowledged < self._trusted

    async def run(
        self, details: Callable[[], SliceResult], *, cancelled: Callable[[], None], lost: Callable[[], None]
    ) -> None:
        """Beats until it is told that the attempt was cancelled or is no longer the slice's."""
        while True:
            began = time.monotonic()
            try:
                async with asyncio.timeout(self._trusted):
                    await self._beat(details())
                self._acknowledged = began
            except AsyncActivityCancelledError:
                cancelled()
                self._acknowledged = began
            except RPCError as error:
                if error.status is RPCStatusCode.NOT_FOUND:
                    return lost()
                logger.debug("a heartbeat was not acknowledged", extra={"error": error.message})
            except TimeoutError:
                logger.debug("a heartbeat was not acknowledged", extra={"error": "no answer"})
            await asyncio.sleep(BEAT_SECONDS)


def temporal_beat(client: Client) -> Beat:
    """Beats of the running activity: the SDK's own, which brings cancellation, and the acknowledged one."""
    handle = client.get_async_activity_handle(task_token=activity.info().task_token)

    async def beat(details: SliceResult) -> None:
        activity.heartbeat(details)
        await handle.heartbeat(details)

    return beat
