"""What backends tell of jobs by calling the API: the URLs they are given, and waiting for their calls."""

import asyncio
import contextlib
import logging
from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta
from typing import Protocol

from activities.slices.pushes import Pace, Pushes, within
from batchwright.database.callbacks_base import CallbacksTable, Told
from batchwright.database.errors import DatabaseUnavailable
from batchwright.rules.callbacks import PATH, Callback, token_of
from batchwright.settings import Settings

logger = logging.getLogger(__name__)
_FORGET_SECONDS = 60.0
_SETTLING = timedelta(minutes=5)  # beyond a token's own end: a slice may be between two workers

Call = asyncio.Future[Told]


class Callbacks(Protocol):
    """`id` is that of `Callback`."""

    def url(self, callback: Callback) -> str:
        """What a backend is to call; empty where no backend can."""
        ...

    def expect(self, id: str) -> Call:
        """Done with what was told, by whichever call came first, also before this one."""
        ...

    def leave(self, id: str, call: Call) -> None:
        """It is not waited for any more."""
        ...

    async def forget(self, ids: Sequence[str]) -> None:
        """What was told of these lies in storage now."""
        ...


class NoCallbacks(Callbacks):
    def url(self, callback: Callback) -> str:
        return ""

    def expect(self, id: str) -> Call:
        return asyncio.get_running_loop().create_future()

    def leave(self, id: str, call: Call) -> None:
        call.cancel()

    async def forget(self, ids: Sequence[str]) -> None: ...


class CallbackWatch(Callbacks):
    """One a process. Calls are heard as they come, and read by one query; a look at all finds the others."""

    def __init__(self, table: CallbacksTable, settings: Settings, pace: Pace | None = None) -> None:
        self._table, self._pace = table, pace or Pace()
        self._secret, self._base = settings.callback_secret, settings.callback_url.rstrip("/")
        self._expected: dict[str, Call] = {}
        self._some = asyncio.Event()
        self._due, self._are_all_due = asyncio.Event(), False
        self._soon: set[str] = set()
        self._pushes = Pushes(table, self._pace, heard=self._hear, turned=self._doubt)

    def url(self, callback: Callback) -> str:
        if not self._secret or not self._base:
            return ""
        return self._base + PATH + token_of(callback, self._secret)

    def expect(self, id: str) -> Call:
        call = self._expected[id] = asyncio.get_running_loop().create_future()
        self._some.set()
        self._hear(id)  # it may have been called before
        return call

    def leave(self, id: str, call: Call) -> None:
        call.cancel()
        if self._expected.get(id) is call:
            del self._expected[id]

    async def forget(self, ids: Sequence[str]) -> None:
        """While the database is away nothing happens: what was told goes when its time is over."""
        if ids:
            with contextlib.suppress(DatabaseUnavailable):
                await self._table.empty(ids)

    async def run(self) -> None:
        """Looks for ever; a database that is away is logged once and asked again."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._look_on())
            if self._secret and self._base:
                group.create_task(self._listen())
            if self._secret:
                group.create_task(self._forget_old())

    async def look(self, ids: Collection[str] | None = None) -> None:
        """Once, at these or at all that are waited for. Raises DatabaseUnavailable."""
        awaited = [id for id in (self._expected if ids is None else ids) if self._is_awaited(id)]
        if not awaited:
            return
        for told in await self._table.told(awaited):
            call = self._expected.get(told.id)
            if call is not None and not call.done():
                call.set_result(told)

    async def _listen(self) -> None:
        """From the first job on: most workers have none."""
        await self._some.wait()
        await self._pushes.run()

    async def _look_on(self) -> None:
        loop = asyncio.get_running_loop()
        is_failing, looked_at = False, float("-inf")  # at all
        while True:
            if not any(map(self._is_awaited, self._expected)):
                self._some.clear()
                await self._some.wait()
            is_sure = self._pushes.is_heard and not is_failing
            until = looked_at + (self._pace.listening if is_sure else self._pace.deaf)
            await within(self._due, until - loop.time())
            self._due.clear()
            named = self._soon.copy()
            are_all = self._are_all_due or loop.time() >= until
            self._soon.clear()
            self._are_all_due = False
            try:
                await self.look(None if are_all else named)
                is_failing = False
            except DatabaseUnavailable as error:
                if not is_failing:
                    logger.warning("calls of backends cannot be read", extra={"error": str(error)})
                is_failing = are_all = self._are_all_due = True
            if are_all:
                looked_at = loop.time()
            await asyncio.sleep(self._pace.together)

    def _hear(self, id: str) -> None:
        if self._is_awaited(id):
            self._soon.add(id)
            self._due.set()

    def _doubt(self) -> None:
        """Something may have been told that was not heard."""
        self._are_all_due = True
        self._due.set()

    def _is_awaited(self, id: str) -> bool:
        call = self._expected.get(id)
        return call is not None and not call.done()

    async def _forget_old(self) -> None:
        while True:
            with contextlib.suppress(DatabaseUnavailable):  # the next time forgets them too
                await self._table.forget(datetime.now(UTC) - _SETTLING)
            await asyncio.sleep(_FORGET_SECONDS)
