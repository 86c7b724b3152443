"""One PostgreSQL database for all tests of tables. It is emptied after each test.

Other tests copy the template for each test. These tests would then take several times as long.
"""

import asyncio
from collections.abc import Generator
from typing import NamedTuple, cast

import pytest

from batchwright.database.driver import DatabaseConnection, connect

_NAME = "batchwright_tables"
_FILLED = """
SELECT string_agg(oid::regclass::text, ', ')
FROM pg_class
WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace AND pg_relation_size(oid) > 0
"""
# A change of a column, an index, a constraint, a trigger, a function or a right changes the result.
_SCHEMA = """
SELECT md5(string_agg(part, ',' ORDER BY part))
FROM (
    SELECT concat_ws(' ', attrelid, attnum, xmin) FROM pg_attribute WHERE attrelid >= 16384
    UNION ALL SELECT concat_ws(' ', oid, xmin) FROM pg_constraint WHERE oid >= 16384
    UNION ALL SELECT concat_ws(' ', oid, xmin) FROM pg_trigger
    UNION ALL SELECT concat_ws(' ', oid, xmin) FROM pg_proc WHERE oid >= 16384
    UNION ALL SELECT concat_ws(' ', oid, relacl) FROM pg_class WHERE relkind IN ('r', 'v', 'S')
) parts(part)
"""
# A deletion takes a tenth of the time that TRUNCATE takes, which makes new files for each table and index.
_DELETION = """
SELECT string_agg('DELETE FROM ' || oid::regclass, ';')
FROM pg_class
WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace AND pg_relation_size(oid) > 0
"""
_IDENTITIES = "SELECT setval(seqrelid, seqstart, false) FROM pg_sequence"
_OTHERS = """
SELECT pg_terminate_backend(pid, 10000)
FROM pg_stat_activity
WHERE datname = current_database() AND pid != pg_backend_pid()
"""


class TablesDatabase(NamedTuple):
    """The database that all tests of tables share, and its rows and tables before the first test.

    The connection has its own event loop, because each test has another event loop.
    """

    url: str
    connection: DatabaseConnection
    rows: dict[str, str]  # the rows that the migration inserts, as JSON, by table
    schema: str

    async def empty(self) -> None:
        """End all other connections, and bring all rows and identities back to those of a new database.

        Raises:
            AssertionError: the test changed the tables themselves.
        """
        connection = self.connection
        await connection.execute(_OTHERS)
        changed = "a test changed the tables that all tests of this folder share"
        assert await _value(connection, _SCHEMA) == self.schema, changed
        async with connection.transaction():
            # Without triggers: they refuse to delete from the audit log, and look for references.
            await connection.execute("SET LOCAL session_replication_role = replica")
            await connection.execute(await _value(connection, _DELETION))
            await connection.execute(_IDENTITIES)
            for table, rows in self.rows.items():
                record = f"json_populate_recordset(NULL::{table}, $1::json)"
                await connection.execute(f"INSERT INTO {table} SELECT * FROM {record}", rows)


async def _create(server: str, template: str) -> TablesDatabase:
    connection = await connect(server)
    await connection.execute(f"CREATE DATABASE {_NAME} TEMPLATE {template}")
    await connection.close()
    url = f"{server.rpartition('/')[0]}/{_NAME}"
    connection = await connect(url)
    filled = (await _value(connection, _FILLED)).split(", ")
    rows = {table: await _value(connection, f"SELECT json_agg(t)::text FROM {table} t") for table in filled}
    return TablesDatabase(url, connection, rows, await _value(connection, _SCHEMA))


@pytest.fixture(scope="session")
def tables_loop() -> Generator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.fixture(scope="session")
def tables_database(
    _server: str, postgres_url: str, tables_loop: asyncio.AbstractEventLoop
) -> Generator[TablesDatabase]:
    database = tables_loop.run_until_complete(_create(_server, postgres_url.rpartition("/")[2]))
    yield database
    tables_loop.run_until_complete(database.connection.close())


@pytest.fixture
def database_url(tables_database: TablesDatabase, tables_loop: asyncio.AbstractEventLoop) -> Generator[str]:
    yield tables_database.url
    tables_loop.run_until_complete(tables_database.empty())


async def _value(connection: DatabaseConnection, query: str) -> str:
    row = await connection.fetchrow(query)
    assert row is not None
    return cast(str, row[0])
