"""Which slice queues a process polls: of the models that are awaited, while there is what slices need."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from worker.awaited import Awaited
from worker.fleet import Fleet, Make
from worker.needs import Needs


class Keeper(Protocol):
    """Of the server's limits on queues."""

    async def keep(self) -> None: ...


class Serving:
    """`pollers` makes the workers of some models' queues; `only` names the models to serve, none: all."""

    def __init__(
        self,
        fleet: Fleet,
        pollers: Callable[[frozenset[str]], Mapping[str, Make]],
        *,
        awaited: Awaited,
        needs: Needs,
        keeper: Keeper,
        only: Sequence[str] = (),
    ) -> None:
        self._fleet, self._pollers = fleet, pollers
        self._awaited, self._needs, self._keeper = awaited, needs, keeper
        self._only = frozenset(only)

    async def run(self) -> None:
        """Follows for ever; a queue has its limit before it is polled."""
        while True:
            await self._something_changed()
            await self._keeper.keep()
            await self._fleet.follow(self._wanted())

    def _wanted(self) -> Mapping[str, Make]:
        if not self._needs.are_met:
            return {}
        known = self._awaited.known
        return self._pollers(known & self._only if self._only else known)

    async def _something_changed(self) -> None:
        changes = [
            asyncio.create_task(self._awaited.changed()),
            asyncio.create_task(self._needs.changed()),
        ]
        try:
            await asyncio.wait(changes, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for change in changes:
                change.cancel()
