"""A process polls the queues of models that are served or waited for, and knows what it misses."""

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
        self.models, self.fleet, self.keeper = Models("a", "b"), Fleet(), Keeper()
        self.pollers = Pollers()
        self.database = MemoryDatabase()
        self.awaited = Awaited(self.models, self.database.fleet.lines_left, every_seconds=0.01)
        self.serving = Serving(self.fleet, self._pollers, awaited=self.awaited, keeper=self.keeper, only=only)

    async def polls(self, *queues: str) -> None:
        await until(lambda: self.fleet.queues == sorted(queues))

    def _pollers(self, models: frozenset[str]) -> dict[str, Make]:
        return self.pollers.of(*(f"inference.{model}" for model in models), "dispatch")


@asynccontextmanager
async def running(run: Callable[[], Awaitable[None]]) -> AsyncGenerator[None]:
    task = asyncio.ensure_future(run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def serving(*only: str) -> AsyncGenerator[House]:
    house = House(*only)
    async with running(house.serving.run):
        yield house
    await house.fleet.shutdown()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - the test's own timeout is the limit
        await asyncio.sleep(0.005)


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


async def test_what_is_away_is_missing_after_its_second_failure_until_it_is_back() -> None:
    looks, is_away = 0, True

    async def storage() -> None:
        nonlocal looks
        looks += 1
        if is_away:
            raise StorageUnavailable("The bucket 'b' refuses writes.")

    async def temporal() -> None:
        raise StorageUnavailable("not vital")

    needs = Needs(
        {"storage": storage, "temporal": temporal}, vital=frozenset({"storage"}), every_seconds=0.01
    )
    async with running(needs.run):
        await until(lambda: bool(needs.missing))
        assert (looks >= 2, needs.missing) == (True, "storage: The bucket 'b' refuses writes.")
        is_away = False
        await until(lambda: not needs.missing)
        assert await needs.look() == {"storage": "ok", "temporal": "not vital"}
