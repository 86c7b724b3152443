"""Places for work that is dear: so many in the process, half of them of one tenant, each thing done once."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import NamedTuple

from api.errors import too_many


class _Waiting(NamedTuple):
    tenant: str
    thing: str
    place: asyncio.Future[None]


class Places:
    """Whoever finds none waits in turn, but for `seconds` at most."""

    def __init__(self, most: int, seconds: float) -> None:
        self._most, self._most_of_one, self._seconds = most, max(most // 2, 1), seconds
        self._of_tenants: Counter[str] = Counter()
        self._things: set[str] = set()
        self._queue: list[_Waiting] = []

    @asynccontextmanager
    async def taken(self, tenant: str, thing: str) -> AsyncGenerator[bool]:
        """Gives whether it had to wait: the thing may be done by now. Raises ApiError (429)."""
        waited = not self._try(tenant, thing)
        if waited:
            await self._wait(tenant, thing)
        try:
            yield waited
        finally:
            self._leave(tenant, thing)

    def _try(self, tenant: str, thing: str) -> bool:
        held = self._of_tenants[tenant]
        if len(self._things) >= self._most or held >= self._most_of_one or thing in self._things:
            return False
        self._of_tenants[tenant] += 1
        self._things.add(thing)
        return True

    async def _wait(self, tenant: str, thing: str) -> None:
        waiting = _Waiting(tenant, thing, asyncio.get_running_loop().create_future())
        self._queue.append(waiting)
        try:
            async with asyncio.timeout(self._seconds):
                await waiting.place
        except TimeoutError:
            self._give_up(waiting)
            message = (
                f"Too many uploads are being completed: none of {self._most} places was free within "
                f"{self._seconds:g} s. Try again."
            )
            raise too_many(message, self._most) from None
        except asyncio.CancelledError:
            self._give_up(waiting)
            raise

    def _give_up(self, waiting: _Waiting) -> None:
        if waiting in self._queue:
            self._queue.remove(waiting)
        else:  # it was given a place at the last moment
            self._leave(waiting.tenant, waiting.thing)

    def _leave(self, tenant: str, thing: str) -> None:
        self._things.discard(thing)
        self._of_tenants[tenant] -= 1
        if not self._of_tenants[tenant]:
            del self._of_tenants[tenant]
        for waiting in list(self._queue):
            if not waiting.place.done() and self._try(waiting.tenant, waiting.thing):
                self._queue.remove(waiting)
                waiting.place.set_result(None)
