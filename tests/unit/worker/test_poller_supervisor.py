"""A worker polls the task queues of required models. It accepts no slices while a dependency is
unavailable.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager

from batchwright.contracts.temporal_payloads.batch import ModelCounts
from batchwright.contracts.terms import BatchStatus
from batchwright.database.errors import DatabaseUnavailable
from batchwright.storage.base import StorageUnavailable
from batchwright.worker.dependency_checks import DependencyMonitor
from batchwright.worker.pollers import PollerFactory, PollerSupervisor, QueuePollers, RequiredModels
from tests.fakes.memory_database import MemoryDatabase
from tests.integration.database.rows import START, after, an_order, slice_progress
from tests.unit.worker.test_queue_pollers import Pollers


class Limiter:
    def __init__(self) -> None:
        self.synced: list[frozenset[str]] = []

    async def sync(self, polled: Collection[str]) -> None:
        self.synced.append(frozenset(polled))


class Registry:
    def __init__(self) -> None:
        self.awaited: Collection[str] = ()
        self.refreshes = 0

    def retain_unlisted(self, awaited: Collection[str]) -> None:
        self.awaited = awaited
        self.refreshes += 1


class PollerFixture:
    def __init__(self, *only: str, limit: int = 100) -> None:
        self.running, self.limiter, self.registry = QueuePollers(), Limiter(), Registry()
        self.only, self.limit = only, limit
        self.pollers, self.ready = Pollers(), asyncio.Event()
        self.ready.set()
        self.database, self.now = MemoryDatabase(), 0.0
        required = RequiredModels(
            lambda: self.database.fleet.awaited_models(START), idle_seconds=60, clock=lambda: self.now
        )
        self.supervisor = PollerSupervisor(
            self.running,
            self._factories,
            required=required,
            limiter=self.limiter,
            registry=self.registry,
        )

    async def until_ready(self) -> None:
        await self.ready.wait()

    async def run(self) -> None:
        await self.supervisor.run(
            only=self.only, limit=self.limit, until_ready=self.until_ready, every_seconds=0.005
        )

    async def refreshed(self) -> None:
        """Wait for a refresh that started after this call."""
        before = self.registry.refreshes
        await until(lambda: self.registry.refreshes >= before + 2)

    async def polls(self, *queues: str) -> None:
        await until(lambda: self.running.queues == sorted(queues))

    def _factories(self, models: frozenset[str]) -> dict[str, PollerFactory]:
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
async def serving(*only: str, limit: int = 100) -> AsyncGenerator[PollerFixture]:
    fixture = PollerFixture(*only, limit=limit)
    async with running(fixture.run):
        yield fixture
    await fixture.running.shutdown()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


async def a_batch_of(database: MemoryDatabase, *models: str) -> None:
    await database.batches.upsert(an_order())
    counts = [ModelCounts(model=model, lines=1) for model in models]
    assert await database.batches.start("t", "batch_1", total=len(models), models=counts, at=START)


async def test_without_a_batch_no_model_is_polled() -> None:
    async with serving() as fixture:
        await fixture.polls("dispatch")
        assert [poller.queue for poller in fixture.pollers.created] == ["dispatch"]


async def test_no_queue_is_polled_before_the_worker_is_ready() -> None:
    fixture = PollerFixture()
    fixture.ready.clear()
    async with running(fixture.run):
        await asyncio.sleep(0.02)
        assert fixture.running.queues == []
        fixture.ready.set()
        await fixture.polls("dispatch")
    await fixture.running.shutdown()


async def test_a_model_is_polled_from_its_first_batch_until_it_is_idle() -> None:
    async with serving() as fixture:
        await a_batch_of(fixture.database, "a", "b")
        await fixture.polls("dispatch", "inference.a", "inference.b")
        assert set(fixture.registry.awaited) == {"a", "b"}
        fixture.now = 1000
        await fixture.refreshed()
        await fixture.database.batch_ends.end_without_files(
            "t", "batch_1", BatchStatus.CANCELLED, [], after(20)
        )
        fixture.now = 1059
        await fixture.refreshed()
        await fixture.polls("dispatch", "inference.a", "inference.b")
        fixture.now = 1060
        await fixture.polls("dispatch")
        await until(lambda: not fixture.registry.awaited)


async def test_a_queue_has_its_limit_before_it_is_polled() -> None:
    async with serving() as fixture:
        await a_batch_of(fixture.database, "a")
        await fixture.polls("dispatch", "inference.a")
        assert fixture.limiter.synced[-1] == {"dispatch", "inference.a"}


async def test_required_models_do_not_change_while_the_database_is_unavailable() -> None:
    async with serving() as fixture:
        await a_batch_of(fixture.database, "a")
        await fixture.polls("dispatch", "inference.a")
        fixture.database.rows.failing = DatabaseUnavailable("away")
        fixture.now = 1000
        await fixture.refreshed()
        await fixture.polls("dispatch", "inference.a")


async def test_many_models_of_one_tenant_leave_room_for_those_of_another() -> None:
    async with serving(limit=2) as fixture:
        await a_batch_of(fixture.database, *(f"m{number}" for number in range(10)))
        await fixture.polls("dispatch", "inference.m0", "inference.m1")
        await fixture.database.batches.upsert(an_order("batch_2", tenant="u"))
        count = ModelCounts(model="z", lines=1)
        assert await fixture.database.batches.start("u", "batch_2", total=1, models=[count], at=START)
        await fixture.polls("dispatch", "inference.m0", "inference.z")
        await fixture.database.progress.record([slice_progress(0, model="m0", completed=1)])
        await fixture.polls("dispatch", "inference.m1", "inference.z")


async def test_only_the_named_models_are_served() -> None:
    async with serving("a", "x") as fixture:
        await a_batch_of(fixture.database, "a", "b")
        await fixture.polls("dispatch", "inference.a")


async def test_a_dependency_is_missing_after_its_second_failure_until_it_answers() -> None:
    checks, is_unavailable = 0, True

    async def storage() -> None:
        nonlocal checks
        checks += 1
        if is_unavailable:
            raise StorageUnavailable("The bucket 'b' refuses writes.")

    async def temporal() -> None:
        raise StorageUnavailable("not vital")

    needs = DependencyMonitor(
        {"storage": storage, "temporal": temporal}, required=frozenset({"storage"}), every_seconds=0.01
    )
    async with running(needs.run):
        await until(lambda: bool(needs.blocking))
        assert (checks >= 2, needs.blocking) == (True, "storage: The bucket 'b' refuses writes.")
        is_unavailable = False
        await until(lambda: not needs.blocking)
        assert await needs.check_all() == {"storage": "ok", "temporal": "not vital"}
