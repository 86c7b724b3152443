"""A connection of a test's own beside those of what it tests."""

from collections.abc import AsyncGenerator

import pytest

from batchwright.database.driver import Connection, connect


@pytest.fixture
async def connection(database_url: str) -> AsyncGenerator[Connection, None]:
    connection = await connect(database_url)
    yield connection
    await connection.close()
