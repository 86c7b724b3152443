"""Tasks that carry flights one after the other."""

import asyncio
from contextvars import ContextVar
from typing import cast

import pytest

from activities.slices.asking import Flight
from activities.slices.crew import Crew

WHOSE = ContextVar("whose", default="nobody's")


def flight(name: str) -> Flight:
    """The crew looks at none of it."""
    return cast("Flight", name)


class Air:
    """Flights land when `answer` says so."""

    def __init__(self) -> None:
        self.landed: list[str] = []
        self.tasks: dict[str, asyncio.Task[None] | None] = {}
        self.contexts: dict[str, str] = {}
        self.following: list[str] = []  # each is launched when another one lands
        self._answers: dict[str, asyncio.Event] = {}
        self.flights: set[Flight] = set()
        self.crew = Crew(self._fly, self._land, self.flights)

    async def launch(self, *names: str) -> None:
        for name in names:
            self.crew.launch(flight(name))
        await self._settled()

    async def answer(self, *names: str) -> None:
        for name in names:
            self._answers[name].set()
        await self._settled()

    async def _settled(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    async def _fly(self, flying: Flight) -> None:
        name = cast("str", flying)
        self.tasks[name], self.contexts[name] = asyncio.current_task(), WHOSE.get()
        await self._answers.setdefault(name, asyncio.Event()).wait()

    def _land(self, flying: Flight) -> None:
        self.landed.append(cast("str", flying))
        if self.following:
            self.crew.launch(flight(self.following.pop()))


async def test_a_task_carries_one_flight_after_the_other() -> None:
    air = Air()
    await air.launch("first")
    await air.answer("first")
    await air.launch("second")
    assert air.tasks["first"] is air.tasks["second"]


async def test_what_is_launched_by_a_landing_goes_on_in_its_task() -> None:
    air = Air()
    air.following = ["second"]
    await air.launch("first")
    await air.answer("first")
    assert air.tasks["first"] is air.tasks["second"]


async def test_flights_of_one_moment_are_in_the_air_together() -> None:
    air = Air()
    await air.launch("first", "second", "third")
    assert len(set(air.tasks.values())) == 3
    assert len(air.flights) == 3


async def test_every_flight_lands_when_the_crew_is_grounded() -> None:
    air = Air()
    await air.launch("answered", "waiting")
    await air.answer("answered")
    air.crew.launch(flight("not begun"))
    air.crew.launch(flight("not begun either"))
    await air.crew.ground()
    assert sorted(air.landed) == ["answered", "not begun", "not begun either", "waiting"]
    assert not air.flights
    assert all(task is not None and task.done() for task in air.tasks.values())


async def test_a_flight_that_is_called_off_lands() -> None:
    air = Air()
    await air.launch("first")
    task = air.tasks["first"]
    assert task is not None
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert air.landed == ["first"]


async def test_a_flight_has_its_own_turns_context_whoever_launches_it() -> None:
    WHOSE.set("the turn's")
    air = Air()
    WHOSE.set("another's")
    await air.launch("first")
    assert air.contexts == {"first": "the turn's"}
