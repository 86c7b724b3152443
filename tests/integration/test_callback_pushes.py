"""Calls of backends heard through PostgreSQL: of other processes, after a lost connection, by a successor."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest

from activities.slices.callbacks import Call, CallbackWatch
from activities.slices.pushes import Pace
from batchwright.database.callbacks_base import CallbacksTable, Told
from batchwright.database.driver import connect
from batchwright.database.pool import Database, open_database
from batchwright.settings import load
from tests.e2e.batches import until

pytestmark = pytest.mark.integration
AT = datetime.now(UTC) + timedelta(days=1)
# No look comes in time: what is not heard, or found for a connection that was lost, is not found.
NEVER = Pace(listening=3600, deaf=3600, again=2)


class Listeners:
    """The connections that listen in one database, by their pids."""

    def __init__(self, database_url: str) -> None:
        self._url = database_url

    async def there(self) -> set[int]:
        return await self._asked("SELECT pid FROM pg_stat_activity")

    async def kill(self) -> set[int]:
        return await self._asked("SELECT pid, pg_terminate_backend(pid) FROM pg_stat_activity")

    async def _asked(self, query: str) -> set[int]:
        connection = await connect(self._url)
        try:
            where = "datname = current_database() AND application_name = 'batchwright-listener'"
            return {row["pid"] for row in await connection.fetch(f"{query} WHERE {where}")}
        finally:
            await connection.close()


class Read(CallbacksTable):
    """The table as a worker has it; `asked` are the ids it was asked for."""

    def __init__(self, table: CallbacksTable) -> None:
        self._table = table
        self.asked: set[str] = set()
        self.accept, self.listening, self.ring = table.accept, table.listening, table.ring
        self.empty, self.forget = table.empty, table.forget

    async def told(self, ids: Sequence[str]) -> list[Told]:
        found = await self._table.told(ids)
        self.asked.update(ids)
        return found


class Worker:
    def __init__(self, database: Database, api: Database) -> None:
        self._table, self._api = Read(database.callbacks), api.callbacks
        settings = load(callback_url="http://api", callback_secret="s" * 32)
        self.watch = CallbackWatch(self._table, settings, NEVER)

    async def waits(self, id: str) -> Call:
        """For a call that was looked for once, and will not be again."""
        call = self.watch.expect(id)

        async def is_asked() -> bool:
            return id in self._table.asked

        await until(is_asked)
        return call

    async def hears(self, *ids: str) -> None:
        """One after the other: a connection that is made finds what came before it, once."""
        for id in ids:
            call = await self.waits(id)
            assert await self._api.accept(id, b"{}", 2, AT)
            assert await told(call) == b"{}"


@asynccontextmanager
async def working(database: Database, api: Database) -> AsyncGenerator[Worker]:
    worker = Worker(database, api)
    running = asyncio.create_task(worker.watch.run())
    yield worker
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def told(call: Call) -> bytes | None:
    return (await asyncio.wait_for(call, 240)).body


@pytest.fixture
async def api(database_url: str) -> AsyncGenerator[Database]:
    """The database as another process has it."""
    database = await open_database(load(database_url=database_url))
    yield database
    await database.close()


async def test_calls_that_another_process_accepts_are_heard(database: Database, api: Database) -> None:
    async with working(database, api) as worker:
        await worker.hears("a", "b", "c")


async def test_a_call_in_the_gap_of_a_killed_connection_is_found_and_the_next_ones_are_heard(
    database: Database, api: Database, database_url: str
) -> None:
    listeners = Listeners(database_url)
    async with working(database, api) as worker:
        await worker.hears("a", "b")
        gap = await worker.waits("gap")
        killed = await listeners.kill()
        assert len(killed) == 1

        async def is_gone() -> bool:  # the next one may be there already
            return not killed & await listeners.there()

        await until(is_gone)
        assert await api.callbacks.accept("gap", b"{}", 2, AT)
        assert await told(gap) == b"{}"
        await worker.hears("c", "d")


async def test_a_worker_that_ends_leaves_no_connection_and_the_next_one_finds_what_was_told(
    database: Database, api: Database, database_url: str
) -> None:
    async with working(database, api) as worker:
        await worker.hears("a", "b")
        await worker.waits("orphan")

    async def is_gone() -> bool:
        return await Listeners(database_url).there() == set()

    await until(is_gone)
    assert await api.callbacks.accept("orphan", b"{}", 2, AT)
    async with working(database, api) as worker:
        assert await told(worker.watch.expect("orphan")) == b"{}"
