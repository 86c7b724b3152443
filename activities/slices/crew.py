"""The tasks that carry a turn's flights, one after the other: making a task costs a good part of sending."""

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from typing import NoReturn

from activities.slices.flight import Flight

# Flights that wait for nothing would leave no turn to anybody else.
_IN_A_ROW = 16


class _Seat:
    """Of one task: the flight it is to carry next."""

    __slots__ = ("_called", "flight")

    def __init__(self, flight: Flight) -> None:
        self.flight: Flight | None = flight
        self._called: asyncio.Future[Flight] | None = None

    def take(self, flight: Flight) -> None:
        if self._called is None:
            self.flight = flight
        else:
            self._called.set_result(flight)
            self._called = None

    async def next(self) -> Flight:
        self._called = asyncio.get_running_loop().create_future()
        return await self._called


class Crew:
    """Of one turn: as many tasks as ever had a flight at once, in the context in which it was made.

    `fly` raises nothing but a cancel; `landed` follows it, whatever came. `flights` are those in the air, of
    which some need no task.
    """

    def __init__(
        self,
        fly: Callable[[Flight], Awaitable[None]],
        landed: Callable[[Flight], None],
        flights: set[Flight],
    ) -> None:
        self._fly, self._landed, self._flights = fly, landed, flights
        self._context = copy_context()
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle: list[_Seat] = []

    def launch(self, flight: Flight) -> None:
        """Maybe called from another turn's task, with whose context the flight has nothing to do."""
        self._flights.add(flight)
        if self._idle:
            self._idle.pop().take(flight)
            return
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._carry(_Seat(flight)), context=self._context.copy())
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
        for flight in list(self._flights):  # cancelled before its first step, a task runs none of its code
            self.land(flight)
        self._fly = self._landed = _of_nobody

    async def _carry(self, seat: "_Seat") -> None:
        in_a_row = 0
        while True:
            flight = seat.flight or await seat.next()
            seat.flight = None
            try:
                await self._fly(flight)
            except BaseException:
                self.land(flight)
                raise
            # Idle before it lands, for then the next one goes out.
            self._idle.append(seat)
            self.land(flight)
            in_a_row += 1
            if in_a_row % _IN_A_ROW == 0:
                await asyncio.sleep(0)

    def land(self, flight: Flight) -> None:
        self._flights.discard(flight)
        self._landed(flight)


def _of_nobody(_flight: Flight) -> NoReturn:
    raise AssertionError("the crew is grounded")
