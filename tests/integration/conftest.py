"""Fixtures that access the database directly instead of through the code under test."""

from collections.abc import AsyncGenerator
from datetime import timedelta

import pytest

from batchwright.database.database import Database
from batchwright.database.driver import DatabaseConnection, connect
from tests.fakes.memory_database import MemoryDatabase
from tests.integration.database.rows import SetHeartbeatAge


@pytest.fixture
async def connection(database_url: str) -> AsyncGenerator[DatabaseConnection, None]:
    connection = await connect(database_url)
    yield connection
    await connection.close()


@pytest.fixture
def set_heartbeat_age(any_database: Database, request: pytest.FixtureRequest) -> SetHeartbeatAge:
    """Return a function that sets how many seconds ago a worker sent its latest heartbeat."""
    if isinstance(any_database, MemoryDatabase):
        rows = any_database.rows

        async def set_in_memory(worker: str, seconds: float) -> None:
            at = rows.clock() - timedelta(seconds=seconds)
            rows.beats[worker] = rows.beats[worker].model_copy(update={"beat_at": at})

        return set_in_memory
    connection: DatabaseConnection = request.getfixturevalue("connection")

    async def set_in_postgres(worker: str, seconds: float) -> None:
        sql = "UPDATE workers SET beat_at = now() - make_interval(secs => $2) WHERE id = $1"
        await connection.execute(sql, worker, seconds)

    return set_in_postgres
