"""A process polls the queues of the models it serves, while there is what slices need."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

from batchwright.contracts.openai import BatchStatus
from batchwright.database.errors import DatabaseUnavailable
from batchwright.database.rows import ModelCount
from batchwright.storage.base import StorageUnavailable
from tests.fakes.database import MemoryDatabase
from tests.integration.rows import START, after, an_order
from tests.unit.test_worker_fleet import Pollers
from worker.awaited import Awaited
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
        self.database = MemoryDatabase()
        self.awaited = Awaited(self.models, self.database.fleet.lines_left, every_seconds=0.01)
        self.serving = Serving(
            self.fleet, self._pollers, awaited=self.awaited, needs=self.needs, keeper=self.keeper, only=only
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


async def a_batch_of(database: MemoryDatabase, *models: str) -> None:
    await database.batches.upsert(an_order())
    counts = [ModelCount(model=model, lines=1) for model in models]
    assert await database.batches.begin("t", "batch_1", total=len(models), models=counts, at=START)


async def test_the_queues_of_served_models_are_polled_as_they_change() -> None:
    async with serving() as house:
        await house.polls("dispatch", "inference.a", "inference.b")
        house.models.become("b", "c")
        await house.polls("dispatch", "inference.b", "inference.c")
        assert house.keeper.kept >= 2


async def test_a_model_that_is_gone_is_polled_as_long_as_a_batch_waits_for_it() -> None:
    """Whoever takes its slices says why they wait; also a worker that never knew it as served."""
    async with serving() as house:
        await a_batch_of(house.database, "a", "gone")
        await house.polls("dispatch", "inference.a", "inference.b", "inference.gone")
        house.models.become("b")
        await house.polls("dispatch", "inference.a", "inference.b", "inference.gone")
        await house.database.batches.end("t", "batch_1", BatchStatus.CANCELLED, [], after(20))
        await house.polls("dispatch", "inference.b")


async def test_a_model_that_goes_is_not_left_for_a_moment_while_a_batch_waits_for_it() -> None:
    async with serving() as house:
        await a_batch_of(house.database, "a")
        await house.polls("dispatch", "inference.a", "inference.b")
        house.models.become("b", "c")
        await house.polls("dispatch", "inference.a", "inference.b", "inference.c")
        assert [poller.queue for poller in house.pollers.made].count("inference.a") == 1


async def test_what_batches_wait_for_stays_as_it_was_while_the_database_is_away() -> None:
    async with serving() as house:
        await a_batch_of(house.database, "gone")
        await house.polls("dispatch", "inference.a", "inference.b", "inference.gone")
        house.database.rows.failing = DatabaseUnavailable("away")
        house.models.become("a")
        await house.polls("dispatch", "inference.a", "inference.gone")


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
