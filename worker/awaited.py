"""The models whose queues are polled: those that are served, and those that batches still wait for.

Otherwise nobody would take the slices of a model that its backends list no more, and say why they wait.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Protocol

from batchwright.database.errors import DatabaseUnavailable

_EVERY_SECONDS = 30.0


class Served(Protocol):
    """Of the registry, what decides."""

    @property
    def known(self) -> frozenset[str]: ...

    async def changed(self) -> frozenset[str]: ...


class Awaited:
    """`lines_left` names the models that live batches have lines of."""

    def __init__(
        self,
        served: Served,
        lines_left: Callable[[], Awaitable[Collection[str]]],
        every_seconds: float = _EVERY_SECONDS,
    ) -> None:
        self._served, self._lines_left, self._every = served, lines_left, every_seconds
        self._left = frozenset[str]()

    @property
    def known(self) -> frozenset[str]:
        return self._served.known | self._left

    async def changed(self) -> frozenset[str]:
        """The models, once they are others than at the last call, or may be."""
        before = self.known
        while True:
            news = await self._served_changed()
            await self._look()
            if news or self.known != before:
                return self.known

    async def _served_changed(self) -> bool:
        """False where nothing was heard for a while."""
        try:
            async with asyncio.timeout(self._every):
                await self._served.changed()
        except TimeoutError:
            return False
        return True

    async def _look(self) -> None:
        try:
            self._left = frozenset(await self._lines_left())
        except (
            DatabaseUnavailable
        ):  # said by the checks of what a worker needs; until then it stays as it was
            return
