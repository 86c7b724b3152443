"""Callbacks with which backends report the end of a job: make their URLs, and read the callbacks."""

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from batchwright.database.errors import DatabaseUnavailable
from batchwright.database.tables.callbacks import CallbacksTable, ReceivedCallback
from batchwright.rules.backends.callback_tokens import CALLBACK_PATH, CallbackToken, sign_token
from batchwright.settings import Settings
from batchwright.telemetry.outage_log import OutageLog

logger = logging.getLogger(__name__)
_POLL_SECONDS = 1.0
_CLEANUP_SECONDS = 60.0
_RETENTION_MARGIN = timedelta(minutes=5)  # kept after a token expires, for slices that change workers

CallbackFuture = asyncio.Future[ReceivedCallback]


class CallbackWatch:
    """The part of a worker process that waits for callbacks: requests that report the end of a backend's job.

    The API receives the callbacks and stores them in the database. This object reads the database once a
    second. In all methods, `id` is the id in the job's `CallbackToken`.
    """

    def __init__(self, table: CallbacksTable, settings: Settings) -> None:
        self._table = table
        self._max_bytes = settings.byte_budget // 4  # per query; other responses need memory, too
        self._secret, self._base = settings.callback_secret, settings.callback_url.rstrip("/")
        self._subscribed: dict[str, CallbackFuture] = {}
        self._one_read_at_a_time = asyncio.Lock()  # of single callbacks; each can be larger than the limit

    def url(self, callback: CallbackToken) -> str:
        """Return the URL that a backend calls at the end of a job; empty if callbacks are not configured."""
        if not self._secret or not self._base:
            return ""
        return self._base + CALLBACK_PATH + sign_token(callback, self._secret)

    def subscribe(self, id: str) -> CallbackFuture:
        """Return a future for the callback with this id. The callback may already have arrived."""
        call = self._subscribed[id] = asyncio.get_running_loop().create_future()
        return call

    def unsubscribe(self, id: str, call: CallbackFuture) -> None:
        """Stop waiting for a callback. `call` is the future that `subscribe` returned."""
        call.cancel()
        if self._subscribed.get(id) is call:
            del self._subscribed[id]

    async def read_now(self, id: str) -> None:
        """Read one callback now, without waiting for the next poll.

        If the callback has arrived, the future that `subscribe` returned for it gets its result. While the
        database is unavailable, this method waits.
        """
        async with self._one_read_at_a_time:
            while self._is_waiting(id):
                try:
                    await self._read([id])
                    return
                except DatabaseUnavailable:  # `run` logs it
                    await asyncio.sleep(_POLL_SECONDS)

    async def forget(self, ids: Sequence[str]) -> None:
        """Delete the stored bodies of the callbacks with these ids, after the results of the jobs are stored.

        If the database is unavailable, the bodies stay until they expire.
        """
        if ids:
            with contextlib.suppress(DatabaseUnavailable):
                await self._table.clear_bodies(ids)

    async def run(self) -> None:
        """Read callbacks every second until cancelled. An unavailable database is logged once per outage.

        If one query does not read all callbacks, the next query follows at once.
        """
        async with asyncio.TaskGroup() as group:
            group.create_task(self._poll_forever())
            if self._secret:
                group.create_task(self._delete_expired())

    async def poll(self) -> bool:
        """Read callbacks that have arrived, and pass them to the waiting jobs. If no job waits, do nothing.

        Return True if more callbacks have arrived than were read. The callbacks that expire first are read
        first. The bodies that one call reads have at most a quarter of the bytes of the worker's memory
        budget (`byte_budget`). But at least one callback is read, even if its body is larger.

        Raises:
            DatabaseUnavailable: the database does not respond.
        """
        waiting = [id for id in self._subscribed if self._is_waiting(id)]
        return await self._read(waiting) if waiting else False

    async def _read(self, ids: Sequence[str]) -> bool:
        found = await self._table.get(ids, self._max_bytes)
        for received in found.callbacks:
            if self._is_waiting(received.id):
                self._subscribed[received.id].set_result(received)
        return found.has_more

    def _is_waiting(self, id: str) -> bool:
        call = self._subscribed.get(id)
        return call is not None and not call.done()

    async def _poll_forever(self) -> None:
        outages = OutageLog(logger, "callbacks cannot be read")
        while True:
            has_more = False
            with outages.suppress(DatabaseUnavailable):
                has_more = await self.poll()
            await asyncio.sleep(0 if has_more else _POLL_SECONDS)

    async def _delete_expired(self) -> None:
        while True:
            with contextlib.suppress(DatabaseUnavailable):  # the next round deletes the same callbacks
                await self._table.delete_expired(datetime.now(UTC) - _RETENTION_MARGIN)
            await asyncio.sleep(_CLEANUP_SECONDS)
