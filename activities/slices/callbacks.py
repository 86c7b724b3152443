"""What backends tell of jobs by calling the API: the URLs they are given, and waiting for their calls."""

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Protocol

from batchwright.database.callbacks_base import CallbacksTable, Told
from batchwright.database.errors import DatabaseUnavailable
from batchwright.rules.callbacks import PATH, Callback, token_of
from batchwright.settings import Settings

logger = logging.getLogger(__name__)
_LOOK_SECONDS = 0.5
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
    """One a process: all that is waited for is looked for in one query, twice a second."""

    def __init__(self, table: CallbacksTable, settings: Settings) -> None:
        self._table = table
        self._secret, self._base = settings.callback_secret, settings.callback_url.rstrip("/")
        self._expected: dict[str, Call] = {}
        self._some = asyncio.Event()

    def url(self, callback: Callback) -> str:
        if not self._secret or not self._base:
            return ""
        return self._base + PATH + token_of(callback, self._secret)

    def expect(self, id: str) -> Call:
        call = self._expected[id] = asyncio.get_running_loop().create_future()
        self._some.set()
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
            group.create_task(self._look_often())
            if self._secret:
                group.create_task(self._forget_old())

    async def look(self) -> None:
        """Once. Raises DatabaseUnavailable."""
        for told in await self._table.told(self._awaited):
            call = self._expected.get(told.id)
            if call is not None and not call.done():
                call.set_result(told)

    async def _look_often(self) -> None:
        failing = False
        while True:
            self._some.clear()
            if not self._awaited:
                await self._some.wait()
            try:
                await self.look()
                failing = False
            except DatabaseUnavailable as error:
                if not failing:
                    logger.warning("calls of backends cannot be read", extra={"error": str(error)})
                failing = True
            await asyncio.sleep(_LOOK_SECONDS)

    @property
    def _awaited(self) -> list[str]:
        return [id for id, call in self._expected.items() if not call.done()]

    async def _forget_old(self) -> None:
        while True:
            with contextlib.suppress(DatabaseUnavailable):  # the next time forgets them too
                await self._table.forget(datetime.now(UTC) - _SETTLING)
            await asyncio.sleep(_FORGET_SECONDS)
