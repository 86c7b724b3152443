"""The tasks that carry a turn's flights, one after the other: making a task costs a good part of sending."""

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from typing import NoReturn

from activities.slices.asking import Flight


class Crew:
    """Of one turn: as many tasks as were ever in the air at once, in the context in which it was made.

    `fly` raises nothing but a cancel; `landed` follows it, whatever came.
    """

    def __init__(self, fly: Callable[[Flight], Awaitable[None]], landed: Callable[[Flight], None]) -> None:
        self._fly, self._landed = fly, landed
        self._context = copy_context()
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle: list[asyncio.Future[Flight]] = []
        self.flights: set[Flight] = set()

    def launch(self, flight: Flight) -> None:
        """Maybe called from another turn's task, with whose context the flight has nothing to do."""
        self.flights.add(flight)
        if self._idle:
            self._idle.pop().set_result(flight)
            return
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._carry(flight), context=self._context.copy())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def ground(self) -> None:
        """Calls off all that is in the air, and lets the tasks and the turn go. Nothing is launched any more.

        A turn that its crew knew would be kept, with all its lines, until the garbage collector comes round.
        """
        self._idle.clear()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for flight in list(self.flights):  # cancelled before its first step, a task runs none of its code
            self._land(flight)
        self._fly = self._landed = _of_nobody

    async def _carry(self, flight: Flight) -> None:
        while True:
            try:
                await self._fly(flight)
            except BaseException:
                self._land(flight)
                raise
            # Idle before it lands, for then the next one goes out.
            idle: asyncio.Future[Flight] = asyncio.get_running_loop().create_future()
            self._idle.append(idle)
            self._land(flight)
            if idle.done():
                await asyncio.sleep(0)  # a flight that waited for nothing would leave no turn to anybody else
            flight = await idle

    def _land(self, flight: Flight) -> None:
        self.flights.discard(flight)
        self._landed(flight)


def _of_nobody(_flight: Flight) -> NoReturn:
    raise AssertionError("the crew is grounded")
