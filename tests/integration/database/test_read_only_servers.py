"""PostgreSQL servers that accept no changes: a standby before its promotion, and a former primary."""

import asyncio
import shutil
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

from batchwright.database.errors import DatabaseUnavailable
from batchwright.database.pool import open_connection_pool
from batchwright.database.postgres import open_database
from batchwright.settings import load
from batchwright.starter.embedded_stack.postgres.server_process import EmbeddedPostgres
from tests.integration.database.admission_rows import admit_batch
from tests.integration.database.rows import a_file
from tests.postgres import SETTINGS, TEMPLATE, copy_server, database_of, execute

pytestmark = pytest.mark.integration


@pytest.fixture
def standby(stopped_postgres: Path) -> Generator[EmbeddedPostgres]:
    # Not below pytest's own folder: the server may run as another user, who could not enter it.
    root = Path(tempfile.mkdtemp(prefix="batchwright-standby-"))
    copy_server(stopped_postgres, root)
    (root / "data" / "standby.signal").touch()
    with EmbeddedPostgres(root, settings=SETTINGS) as server:
        yield server
    shutil.rmtree(root, ignore_errors=True)


async def test_a_standby_is_unavailable_to_everything_but_plain_reads_until_it_is_promoted(
    standby: EmbeddedPostgres,
) -> None:
    url = database_of(standby.dsn, TEMPLATE)
    database = await open_database(load(database_url=url))
    assert await database.files.get("t", "file-1") is None
    errors = await asyncio.gather(
        database.files.insert(a_file()),
        database.quotas.count_request("t"),
        database.quotas.used("t"),  # reads an unlogged table, which a standby does not have
        admit_batch(database, "batch_1", 1),
        database.check(),
        return_exceptions=True,
    )
    assert all(isinstance(error, DatabaseUnavailable) for error in errors)
    await execute(standby.dsn, "SELECT pg_promote()")
    assert await admit_batch(database, "batch_1", 1)
    await database.check()
    await database.close()


async def test_a_connection_to_a_server_that_became_read_only_is_replaced(database_url: str) -> None:
    """After a failover, the address of the primary may lead to another server than the open connections."""
    pool = await open_connection_pool(database_url, size=1, patience_seconds=0)
    for _ in range(2):
        await pool.execute("SET default_transaction_read_only = on")
        with pytest.raises(DatabaseUnavailable, match="read-only"):
            await pool.execute("DELETE FROM holds")
        await pool.execute("DELETE FROM holds")
        await pool.execute("SET default_transaction_read_only = on")
        with pytest.raises(DatabaseUnavailable, match="read-only"):
            async with pool.transaction() as session:
                await session.execute("DELETE FROM holds")
        async with pool.transaction() as session:
            await session.execute("DELETE FROM holds")
        await pool.execute("SET default_transaction_read_only = on")
        with pytest.raises(DatabaseUnavailable, match="accepts no changes"):
            await pool.check()
        await pool.check()
    await pool.close()
