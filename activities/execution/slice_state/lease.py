"""The lease of a slice: the right to send its lines, renewed by a heartbeat every 2 s."""

import asyncio
import logging
from collections.abc import Callable
from datetime import datetime, timedelta
from enum import Enum, auto
from typing import Protocol

from temporalio import activity
from temporalio.client import AsyncActivityCancelledError, Client
from temporalio.service import RPCError, RPCStatusCode

from batchwright.activities.clock import suspend_aware_clock
from batchwright.activities.heartbeat import failure_count_details, previous_failures
from batchwright.contracts.temporal_payloads.execution import SliceResult

logger = logging.getLogger(__name__)
HEARTBEAT_SECONDS = 2.0
_REPLY_SECONDS = 5.0
_SAFETY_MARGIN_SECONDS = 5.0


class HeartbeatReply(Enum):
    """Temporal's reply to a heartbeat. UNREACHABLE means that there was no reply."""

    OK = auto()
    CANCEL_REQUESTED = auto()
    PAUSED = auto()  # an operator paused or reset the activity, and it will be started again
    LEASE_LOST = auto()
    UNREACHABLE = auto()


class Heartbeat(Protocol):
    async def __call__(self, details: SliceResult) -> HeartbeatReply: ...


class LeaseLost(Exception):
    """The error raised if another attempt has the slice. This attempt must then store no more results."""


class SliceLease:
    """The right of this attempt to send the slice's lines. Each acknowledged heartbeat renews it.

    The lease ends at `valid_until`, shortly before Temporal may give the slice to another worker. The lease
    can also end while the machine is suspended.

    Attributes:
        is_lost: True if another attempt is known to have the slice.
    """

    def __init__(
        self,
        heartbeat: Heartbeat,
        heartbeat_timeout: timedelta | None,
        clock: Callable[[], float] = suspend_aware_clock,
    ) -> None:
        self._heartbeat, self._clock = heartbeat, clock
        timeout = heartbeat_timeout.total_seconds() if heartbeat_timeout else float("inf")
        self._valid_seconds = max(timeout - _SAFETY_MARGIN_SECONDS, HEARTBEAT_SECONDS)
        self.valid_until = clock() + self._valid_seconds  # the attempt was just started
        self.is_lost, self._details = False, SliceResult()

    @property
    def is_valid(self) -> bool:
        return self._clock() < self.valid_until

    async def run(
        self,
        details: Callable[[], SliceResult],
        on_reply: Callable[[HeartbeatReply], None],
        *,
        at_once: bool,
    ) -> None:
        """Send heartbeats until the lease is lost.

        Args:
            details: returns the slice's counts, which each heartbeat contains.
            on_reply: called with every reply except OK and UNREACHABLE.
            at_once: True sends the first heartbeat now, False after 2 s.
        """
        if not at_once:
            await asyncio.sleep(HEARTBEAT_SECONDS)
        while True:
            sent_at, self._details = self._clock(), details()
            reply = await self._heartbeat(self._details)
            if reply is not HeartbeatReply.UNREACHABLE:
                self.valid_until = sent_at + self._valid_seconds
            if reply not in (HeartbeatReply.OK, HeartbeatReply.UNREACHABLE):
                on_reply(reply)
            if reply is HeartbeatReply.LEASE_LOST:
                self.is_lost = True
                return
            await asyncio.sleep(HEARTBEAT_SECONDS)

    async def check(self) -> bool:
        """Check that no other attempt has the slice. Call this before results are stored.

        If the lease has ended, for example because this process was frozen, the last heartbeat is sent again,
        because Temporal's reply shows if another attempt has the slice. If Temporal is unreachable, or does
        not reply within 5 s, another attempt may have the slice, and the result is False. In all other cases,
        the result is True.

        Raises:
            LeaseLost: another attempt has the slice.
        """
        reply = HeartbeatReply.OK
        if not self.is_valid and not self.is_lost:
            reply = await self._heartbeat(self._details)
            self.is_lost = reply is HeartbeatReply.LEASE_LOST
        if self.is_lost:
            raise LeaseLost
        return reply is not HeartbeatReply.UNREACHABLE

    async def report(self, details: SliceResult) -> None:
        """Send a heartbeat now. Return when Temporal has replied, at the latest after 5 s.

        The reply is not used, because `run` gets the same reply to its next heartbeat.
        """
        self._details = details
        await self._heartbeat(details)


def is_fresh_attempt(info: activity.Info, now: datetime) -> bool:
    """Return True if this is the slice's first attempt, and if this attempt started less than 2 s ago.

    The first heartbeat can then wait. If the result is False, a heartbeat must be sent at once:

    - A later attempt must report the crashes of earlier attempts.
    - A first attempt in a process that was frozen must find out if it still has the slice.

    If the worker's clock is wrong, the result can be False by mistake. This only costs one heartbeat.
    """
    return info.attempt == 1 and abs((now - info.started_time).total_seconds()) < HEARTBEAT_SECONDS


def temporal_heartbeat(client: Client) -> Heartbeat:
    """Return a function that sends a heartbeat for the running activity and returns Temporal's reply.

    The function sends each heartbeat twice: through the SDK, and then directly to the server. Only the direct
    call shows if the server has acknowledged the heartbeat.

    Each heartbeat also contains the number of attempts that ended with an unknown exception. The next attempt
    reads this number, even if this attempt crashes.
    """
    info = activity.info()
    handle = client.get_async_activity_handle(task_token=info.task_token)
    failures = failure_count_details(previous_failures(info.heartbeat_details))

    async def heartbeat(details: SliceResult) -> HeartbeatReply:
        activity.heartbeat(details, *failures)
        try:
            async with asyncio.timeout(_REPLY_SECONDS):
                await handle.heartbeat(details, *failures)
        except AsyncActivityCancelledError as error:
            cancelled = error.details is None or error.details.cancel_requested
            return HeartbeatReply.CANCEL_REQUESTED if cancelled else HeartbeatReply.PAUSED
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return HeartbeatReply.LEASE_LOST
            logger.debug("heartbeat not acknowledged", extra={"error": error.message})
            return HeartbeatReply.UNREACHABLE
        except TimeoutError:
            return HeartbeatReply.UNREACHABLE
        return HeartbeatReply.OK

    return heartbeat
