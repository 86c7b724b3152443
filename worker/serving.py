"""Which slice queues a process polls: those of the models that are awaited."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from worker.fleet import Fleet, Make


class Models(Protocol):
    """Those that are awaited."""

    @property
    def known(self) -> frozenset[str]: ...

    async def changed(self) -> object:
        """Returns once they are others than at the last call."""
        ...


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
        awaited: Models,
        keeper: Keeper,
        only: Sequence[str] = (),
    ) -> None:
        self._fleet, self._pollers = fleet, pollers
        self._awaited, self._keeper = awaited, keeper
        self._only = frozenset(only)

    async def run(self) -> None:
        """Follows for ever; a queue has its limit before it is polled."""
        while True:
            await self._awaited.changed()
            await self._keeper.keep()
            known = self._awaited.known
            await self._fleet.follow(self._pollers(known & self._only if self._only else known))
