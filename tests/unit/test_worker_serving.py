"""A process polls the queues of the models it serves, while there is what slices need."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

from batchwright.storage.base import StorageUnavailable
from tests.unit.test_worker_fleet import Pollers
from worker.fleet import Fleet, Make
from worker.needs import Needs
from worker.serving import Serving


class Models:
    """The registry's list, changed by a test."""

    def __init__(self, *names: str) -> None:
        self._changed = asyncio.Event()
        self.known = frozenset[str]()
        self.become(*names)

    def become(self, *names: str) -> None:
        self.known = frozenset(names)
        self._changed.set()

    async def changed(self) -> frozenset[str]:
        await self._changed.wait()
        self._changed.clear()
        return self.known


class Keeper:
    def __init__(self) -> None:
        self.kept = 0

    async def keep(self) -> None:
        self.kept += 1


class House:
    def __init__(self, *only: str) -> None:
        self.storage_is_away = False
        self.models, self.fleet, self.keeper = Models("a", "b"), Fleet(), Keeper()
        self.pollers = Pollers()
        checks: dict[str, Callable[[], Awaitable[None]]] = {"storage": self._check, "temporal": self._fail}
        self.needs = Needs(checks, vital=frozenset({"storage"}), every_seconds=0.01)
        self.serving = Serving(
            self.fleet, self._pollers, served=self.models, needs=self.needs, keeper=self.keeper, only=only
        )

    async def polls(self, *queues: str) -> None:
        while self.fleet.queues != sorted(queues):  # noqa: ASYNC110 - the test's own timeout is the limit
            await asyncio.sleep(0.005)

    def _pollers(self, models: frozenset[str]) -> dict[str, Make]:
        return self.pollers.of(*(f"inference.{model}" for model in models), "dispatch")

    async def _check(self) -> None:
        if self.storage_is_away:
            raise StorageUnavailable("The bucket 'b' refuses writes.")

    async def _fail(self) -> None:
        raise StorageUnavailable("not vital")


@asynccontextmanager
async def serving(*only: str) -> AsyncGenerator[House]:
    house = House(*only)
    helpers = [asyncio.create_task(run()) for run in (house.serving.run, house.needs.run)]
    try:
        yield house
    finally:
        for helper in helpers:
            helper.cancel()
        await asyncio.gather(*helpers, return_exceptions=True)
        await house.fleet.shutdown()


async def test_the_queues_of_served_models_are_polled_as_they_change() -> None:
    async with serving() as house:
        await house.polls("dispatch", "inference.a", "inference.b")
        house.models.become("b", "c")
        await house.polls("dispatch", "inference.b", "inference.c")
        assert house.keeper.kept >= 2


async def test_only_the_named_models_are_served() -> None:
    async with serving("a", "x") as house:
        await house.polls("dispatch", "inference.a")


async def test_no_slices_are_taken_while_storage_is_away_and_again_afterwards() -> None:
    async with serving() as house:
        await house.polls("dispatch", "inference.a", "inference.b")
        house.storage_is_away = True
        await house.polls()
        assert await house.needs.look() == {
            "storage": "The bucket 'b' refuses writes.",
            "temporal": "not vital",
        }
        house.storage_is_away = False
        await house.polls("dispatch", "inference.a", "inference.b")


async def test_a_model_that_comes_while_storage_is_away_is_polled_once_it_is_back() -> None:
    async with serving() as house:
        await house.polls("dispatch", "inference.a", "inference.b")
        house.storage_is_away = True
        await house.polls()
        house.models.become("c")
        house.storage_is_away = False
        await house.polls("dispatch", "inference.c")
