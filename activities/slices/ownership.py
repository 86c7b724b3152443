"""Whether this attempt still owns its slice: heartbeats the server has acknowledged, every 2 s."""

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from enum import Enum, auto
from typing import Protocol

from temporalio import activity
from temporalio.client import AsyncActivityCancelledError, Client
from temporalio.service import RPCError, RPCStatusCode

from batchwright.contracts.execution import SliceResult

logger = logging.getLogger(__name__)
BEAT_SECONDS = 2.0
_ANSWER_SECONDS = 5.0
_SAFETY_SECONDS = 5.0


class Word(Enum):
    """What the server says to a heartbeat."""

    GO_ON = auto()
    CANCEL = auto()
    GIVE_BACK = auto()  # an operator paused or reset the activity: it will be started again
    LOST = auto()
    NO_ANSWER = auto()


class Beat(Protocol):
    async def __call__(self, details: SliceResult) -> Word: ...


class Ownership:
    """`may_send` is false once the last acknowledged beat is old enough for the slice to be another's."""

    def __init__(
        self,
        beat: Beat,
        heartbeat_timeout: timedelta | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._beat, self._clock = beat, clock
        timeout = heartbeat_timeout.total_seconds() if heartbeat_timeout else float("inf")
        self._trusted = max(timeout - _SAFETY_SECONDS, BEAT_SECONDS)
        self._acknowledged = clock()  # the attempt was just handed out

    @property
    def may_send(self) -> bool:
        return self._clock() - self._acknowledged < self._trusted

    async def run(
        self, details: Callable[[], SliceResult], heard: Callable[[Word], None], *, at_once: bool
    ) -> None:
        """Beats until the slice is another's; `heard` gets every word but GO_ON and NO_ANSWER."""
        if not at_once:
            await asyncio.sleep(BEAT_SECONDS)
        while True:
            began = self._clock()
            word = await self._beat(details())
            if word is not Word.NO_ANSWER:
                self._acknowledged = began
            if word not in (Word.GO_ON, Word.NO_ANSWER):
                heard(word)
            if word is Word.LOST:
                return
            await asyncio.sleep(BEAT_SECONDS)


def is_fresh(info: activity.Info, now: datetime) -> bool:
    """Whether it is a slice's first attempt, handed out just now: the server knows all there is to tell.

    A clock that differs from the server's costs a beat. A later attempt tells at once of those before it, and
    one that lay in a frozen process has to hear whether the slice is still its own.
    """
    return info.attempt == 1 and abs((now - info.started_time).total_seconds()) < BEAT_SECONDS


def temporal_beat(client: Client) -> Beat:
    """Of the running activity: the SDK's own beat, for the worker to see, and the acknowledged one."""
    handle = client.get_async_activity_handle(task_token=activity.info().task_token)

    async def beat(details: SliceResult) -> Word:
        activity.heartbeat(details)
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                await handle.heartbeat(details)
        except AsyncActivityCancelledError as error:
            cancelled = error.details is None or error.details.cancel_requested
            return Word.CANCEL if cancelled else Word.GIVE_BACK
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return Word.LOST
            logger.debug("a heartbeat was not acknowledged", extra={"error": error.message})
            return Word.NO_ANSWER
        except TimeoutError:
            return Word.NO_ANSWER
        return Word.GO_ON

    return beat
