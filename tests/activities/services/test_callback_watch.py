"""Waiting for callbacks of jobs: one database query a second serves all jobs that wait."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest

from batchwright.activities.services.backend_job_callbacks import CallbackFuture, CallbackWatch
from batchwright.database.errors import DatabaseUnavailable
from batchwright.database.tables.callbacks import ReceivedCallback
from batchwright.settings import load
from tests.fakes.memory_database import MemoryDatabase

pytestmark = pytest.mark.usefixtures("skipped_waits")


class WatchFixture:
    """A running `CallbackWatch`, and the callbacks that it waits for, by job."""

    def __init__(self) -> None:
        self.database = MemoryDatabase()
        self.table = self.database.callbacks
        self.watch = CallbackWatch(self.table, load(callback_url="http://api", callback_secret="s" * 32))
        self.calls: dict[str, CallbackFuture] = {}

    def subscribe(self, count: int = 1) -> None:
        for id in [f"job-{number}" for number in range(count)]:
            self.calls[id] = self.watch.subscribe(id)

    async def accept(self, id: str = "job-0", body: bytes = b"{}") -> None:
        assert await self.table.accept(id, body, len(body), datetime.now(UTC) + timedelta(days=9))

    async def received(self, id: str = "job-0") -> ReceivedCallback:
        return await asyncio.wait_for(self.calls[id], 600)


@asynccontextmanager
async def watching(count: int = 1) -> AsyncGenerator[WatchFixture]:
    fixture = WatchFixture()
    fixture.subscribe(count)
    running = asyncio.create_task(fixture.watch.run())
    yield fixture
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_callback_is_received_within_about_a_second() -> None:
    async with watching(500) as fixture:
        await asyncio.sleep(30.5)
        began = asyncio.get_running_loop().time()
        await fixture.accept("job-7")
        assert await fixture.received("job-7") == ReceivedCallback("job-7", 2, b"{}")
        assert asyncio.get_running_loop().time() - began < 1.5


async def test_one_query_a_second_reads_all_jobs_that_wait() -> None:
    async with watching(500) as fixture:
        await asyncio.sleep(60)
        assert 55 <= len(fixture.table.reads) <= 61
        assert {len(ids) for ids in fixture.table.reads} == {500}


async def test_callbacks_that_arrive_together_are_read_together_and_only_once() -> None:
    async with watching(500) as fixture:
        await asyncio.sleep(1.5)
        fixture.table.reads.clear()
        for id in list(fixture.calls)[:499]:
            await fixture.accept(id)
        await asyncio.gather(*map(fixture.received, list(fixture.calls)[:499]))
        assert len(fixture.table.reads) == 1
        await asyncio.sleep(1.5)
        assert fixture.table.reads[1:] == [["job-499"]]


async def test_large_callbacks_are_read_a_quarter_of_the_memory_budget_at_a_time() -> None:
    fixture = WatchFixture()
    fixture.subscribe(9)
    for id in fixture.calls:
        await fixture.accept(id, b"x" * (5 * 2**20))
    read: list[int] = []
    for _ in range(3):
        await fixture.watch.poll()
        read.append(sum(call.done() for call in fixture.calls.values()))
    assert read == [3, 6, 9]


async def test_large_callbacks_that_arrive_together_are_read_without_pauses() -> None:
    async with watching(300) as fixture:
        await asyncio.sleep(1.5)
        for id in fixture.calls:
            await fixture.accept(id, b"x" * (5 * 2**20))
        began = asyncio.get_running_loop().time()
        await asyncio.gather(*map(fixture.received, fixture.calls))
        assert asyncio.get_running_loop().time() - began < 1.5


async def test_one_callback_is_read_at_once_if_its_job_asks_for_it() -> None:
    fixture = WatchFixture()
    fixture.subscribe(2)
    await fixture.watch.read_now("job-1")
    assert not fixture.calls["job-1"].done()
    for id in fixture.calls:
        await fixture.accept(id)
    await fixture.watch.read_now("job-1")
    assert (await fixture.received("job-1")).body == b"{}"
    await fixture.watch.read_now("job-1")
    assert fixture.table.reads == [["job-1"], ["job-1"]]


async def test_a_job_that_reads_its_callback_waits_for_an_unavailable_database() -> None:
    fixture = WatchFixture()
    fixture.subscribe()
    await fixture.accept()
    fixture.database.rows.failing = DatabaseUnavailable("away")
    reading = asyncio.create_task(fixture.watch.read_now("job-0"))
    await asyncio.sleep(60)
    assert not reading.done()
    fixture.database.rows.failing = None
    await reading
    assert fixture.calls["job-0"].done()


async def test_a_callback_that_arrived_before_its_job_waited_is_found() -> None:
    async with watching(0) as fixture:
        await fixture.accept()
        fixture.subscribe()
        assert (await fixture.received()).body == b"{}"


async def test_no_query_is_sent_while_no_job_waits() -> None:
    async with watching() as fixture:
        fixture.watch.unsubscribe("job-0", fixture.calls["job-0"])
        await asyncio.sleep(600)
        assert fixture.table.reads == []


async def test_a_callback_is_read_once_an_unavailable_database_is_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with watching() as fixture:
        await fixture.accept()
        fixture.database.rows.failing = DatabaseUnavailable("away")
        await asyncio.sleep(60)
        assert not fixture.calls["job-0"].done()
        fixture.database.rows.failing = None
        began = asyncio.get_running_loop().time()
        await fixture.received()
        assert asyncio.get_running_loop().time() - began < 1.5
    assert [record.message for record in caplog.records].count("callbacks cannot be read") == 1
