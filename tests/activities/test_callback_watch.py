"""Waiting for the calls of backends: heard as they come, and found where they were not heard."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest

from activities.slices.callbacks import Call, CallbackWatch
from activities.slices.pushes import Pace
from batchwright.database.callbacks_base import Told
from batchwright.database.errors import DatabaseUnavailable
from batchwright.settings import load
from tests.fakes.database import MemoryDatabase

pytestmark = pytest.mark.usefixtures("skipped_waits")
PACE = Pace()


class Waiting:
    """A watch that runs, and the calls it waits for."""

    def __init__(self, url: str = "http://api") -> None:
        self.database = MemoryDatabase()
        self.table = self.database.callbacks
        self.watch = CallbackWatch(self.table, load(callback_url=url, callback_secret="s" * 32))
        self.calls: dict[str, Call] = {}

    def expect(self, count: int = 1) -> None:
        for id in [f"job-{number}" for number in range(count)]:
            self.calls[id] = self.watch.expect(id)

    async def tell(self, id: str = "job-0") -> None:
        assert await self.table.accept(id, b"{}", 2, datetime.now(UTC) + timedelta(days=9))

    async def told(self, id: str = "job-0") -> Told:
        return await asyncio.wait_for(self.calls[id], 600)

    async def listens(self) -> None:
        """Past the proof that it hears, and the look that follows."""
        await until(lambda: len(self.table.connections) == 1)
        await asyncio.sleep(1)
        self.table.reads.clear()


@asynccontextmanager
async def waiting(count: int = 1, url: str = "http://api") -> AsyncGenerator[Waiting]:
    house = Waiting(url)
    running = asyncio.create_task(house.watch.run())
    house.expect(count)
    yield house
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(600):
        while not holds():  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.05)


async def test_a_call_is_heard_and_it_alone_is_read() -> None:
    async with waiting(500) as house:
        await house.listens()
        await house.tell("job-7")
        assert await house.told("job-7") == Told("job-7", 2, b"{}")
        assert house.table.reads == [["job-7"]]


async def test_jobs_that_wait_are_looked_at_four_times_a_minute() -> None:
    async with waiting(500) as house:
        await house.listens()
        await asyncio.sleep(60)
        assert 3 <= len(house.table.reads) <= 5
        assert {len(ids) for ids in house.table.reads} == {500}


async def test_calls_that_come_together_are_read_together() -> None:
    async with waiting(500) as house:
        await house.listens()
        for id in house.calls:
            await house.tell(id)
        await asyncio.gather(*map(house.told, house.calls))
        assert len(house.table.reads) == 1


async def test_a_steady_flow_of_calls_keeps_no_other_from_being_found() -> None:
    async with waiting(500) as house:
        await house.listens()
        house.table.is_deaf = True
        await house.tell("job-499")
        house.table.is_deaf = False
        for number in range(400):
            await house.tell(f"job-{number}")
            await asyncio.sleep(0.1)
        assert house.calls["job-499"].done()


async def test_what_was_told_before_anybody_waited_is_found() -> None:
    async with waiting(0) as house:
        await house.tell()
        house.expect()
        await house.told()
        assert all(call.done() for call in house.calls.values())


async def test_nothing_is_asked_while_no_job_waits() -> None:
    async with waiting(0) as house:
        await asyncio.sleep(600)
        assert (house.table.reads, house.table.connections) == ([], [])


async def test_a_call_in_the_gap_of_a_lost_connection_is_found_once_there_is_another() -> None:
    async with waiting(2) as house:
        await house.listens()
        house.table.lose()
        await house.tell("job-0")
        await house.told("job-0")
        await house.listens()
        await house.tell("job-1")
        await house.told("job-1")
        assert house.table.reads == [["job-1"]]


async def test_where_nothing_is_heard_jobs_are_looked_at_each_second_and_one_line_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        async with waiting() as house:
            house.table.is_deaf = True
            await asyncio.sleep(60)
            assert 40 <= len(house.table.reads) <= 60
            await house.tell()
            await house.told()
            await asyncio.sleep(300)
    [record] = caplog.records
    assert "not heard" in record.message
    assert "BATCHWRIGHT_DATABASE_URL" in record.__dict__["reason"]


async def test_a_connection_that_fell_silent_is_replaced() -> None:
    async with waiting(2) as house:
        await house.listens()
        [before] = house.table.connections
        house.table.is_deaf = True
        await house.tell("job-0")
        await house.told("job-0")
        await until(lambda: not house.table.connections)
        house.table.is_deaf = False
        await house.listens()
        assert house.table.connections != [before]
        await house.tell("job-1")
        await house.told("job-1")
        assert house.table.reads == [["job-1"]]


async def test_what_was_heard_while_the_database_was_away_is_read_when_it_is_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with waiting() as house:
        await house.listens()
        await house.tell()
        house.database.rows.failing = DatabaseUnavailable("away")
        await asyncio.sleep(60)
        assert not house.calls["job-0"].done()
        house.database.rows.failing = None
        began = asyncio.get_running_loop().time()
        await house.told()
        assert asyncio.get_running_loop().time() - began < PACE.listening
    assert [record.message for record in caplog.records].count("calls of backends cannot be read") == 1


async def test_without_a_url_to_call_nobody_listens_and_jobs_of_before_are_looked_at() -> None:
    async with waiting(url="") as house:
        await asyncio.sleep(10)
        assert house.table.connections == []
        await house.tell()
        await house.told()
