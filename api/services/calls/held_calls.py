"""Keeps connections of clients open until their call (a single request without a batch) has ended. One loop
watches all these calls.
"""

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Generator
from contextlib import contextmanager

from starlette.types import Receive

from batchwright.api.dependencies import ApiDependencies
from batchwright.api.errors import ApiError, no_room
from batchwright.api.services.calls.acceptance import HELD
from batchwright.api.services.calls.watched_connections import WatchedConnections, stopping_error
from batchwright.database.errors import DatabaseUnavailable
from batchwright.database.tables.calls import CallKey
from batchwright.telemetry.outage_log import OutageLog

logger = logging.getLogger(__name__)
MAX_HELD = 1_000
MAX_HELD_PER_TENANT = 500
POLL_SECONDS = 0.1
_PAUSE_PER_POLL_TIME = 9  # ratio of pause to poll, so that 10 % of the time is polling


class HeldConnections:
    """A limiter of the client connections of this process that are open while clients wait for answers.

    It has two limits: one for the connections of each tenant, and one for all connections together. Flex
    calls (which become lines of batches) and interactive calls (which are sent immediately) are limited
    separately: each kind has its own object of this class.
    """

    def __init__(self) -> None:
        self._held = Counter[str]()  # number by tenant

    @contextmanager
    def place(self, tenant: str) -> Generator[None]:
        """Context manager that counts one connection as open until the end of the `with` block.

        Raises:
            ApiError: the tenant or this process already has too many open connections (429).
        """
        if self._held[tenant] >= MAX_HELD_PER_TENANT or self._held.total() >= MAX_HELD:
            message = (
                f"No room: this process holds {self._held.total()} connections of at most {MAX_HELD}, of "
                f"which {self._held[tenant]} of at most {MAX_HELD_PER_TENANT} are yours. Try again later."
            )
            raise no_room(message)
        self._held[tenant] += 1
        try:
            yield
        finally:
            self._held[tenant] -= 1
            if not self._held[tenant]:
                del self._held[tenant]


class HeldCalls:
    """The calls (single requests without a batch) for which clients wait on an open connection.

    One query reads the state of all these calls together. If no client waits, no query is sent.
    """

    def __init__(self, deps: ApiDependencies) -> None:
        self._calls = deps.database.calls
        self.connections = HeldConnections()
        self._watched = WatchedConnections(deps.stopping)
        self._ended: dict[CallKey, set[asyncio.Future[None]]] = defaultdict(set)
        self._poller: asyncio.Task[None] | None = None

    async def wait(self, key: CallKey, receive: Receive) -> bool:
        """Wait until a call has ended or no longer exists, and return True. If the client disconnects first,
        return False.

        Args:
            key: tenant and id of the call.
            receive: ASGI function that returns the next message of the client, after its whole body.

        Raises:
            ApiError: the process is stopping (503), or the call has not ended within 15 minutes (429).
        """
        ended = asyncio.get_running_loop().create_future()
        async with self._watched.watched(receive) as connection:
            self._ended[key].add(ended)
            try:
                if self._poller is None or self._poller.done():
                    self._poller = asyncio.create_task(self._poll())
                    self._poller.add_done_callback(self._report_failure)
                waiting, longest = (ended, connection), HELD.length.total_seconds()
                await asyncio.wait(waiting, timeout=longest, return_when=asyncio.FIRST_COMPLETED)
            finally:
                self._ended[key].discard(ended)
                if not self._ended[key]:
                    del self._ended[key]
            if ended.done():
                ended.result()
                return True
            if connection.cancelled():
                raise stopping_error()
            if not connection.done():
                raise late_error()
            return False

    async def _poll(self) -> None:
        """Query the state of all calls that clients wait for. Repeat this as long as a client waits."""
        clock = asyncio.get_running_loop().time
        outages = OutageLog(logger, "held calls cannot be watched")
        while self._ended:
            began = clock()
            with outages.suppress(DatabaseUnavailable):
                for key in await self._calls.ended(list(self._ended)):
                    for ended in self._ended.get(key, ()):
                        if not ended.done():
                            ended.set_result(None)
            await asyncio.sleep(max(POLL_SECONDS, (clock() - began) * _PAUSE_PER_POLL_TIME))

    def _report_failure(self, poller: asyncio.Task[None]) -> None:
        """If the task that queries the calls has failed, raise its exception in all callers of `wait`."""
        if poller.cancelled() or (error := poller.exception()) is None:
            return
        for waiting in self._ended.values():
            for ended in waiting:
                if not ended.done():
                    ended.set_exception(error)


def late_error() -> ApiError:
    """Return the 429 error for a call that was not answered within 15 minutes. A header tells clients not to
    retry.
    """
    late = no_room(
        f"No room: the call waited for {HELD.text}, and no backend had room for it. Try again later."
    )
    late.headers["x-should-retry"] = "false"  # the client has waited for long already
    return late
