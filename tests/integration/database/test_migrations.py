"""Migrations on a real PostgreSQL: run once, in order, by one process, and completely or not at all."""

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncGenerator
from contextlib import suppress
from pathlib import Path
from secrets import token_hex

import pytest

from batchwright.database import driver
from batchwright.database import migrate as module
from batchwright.database.driver import connect
from batchwright.database.errors import DatabaseUnavailable, MigrationFailed, SchemaMismatch
from batchwright.database.migrate import migrate, pending
from batchwright.database.postgres import open_database
from batchwright.database.sql import Migration, migration_of, migrations
from batchwright.settings import load
from tests.postgres import execute
from tests.unit.deploy.files import ROOT

pytestmark = pytest.mark.integration

ALL = [migration.name for migration in migrations()]
GOOD = Migration("9001_good.sql", "CREATE TABLE good (); CREATE TABLE better ();", "1")
BROKEN = Migration("9002_broken.sql", "CREATE TABLE half (); SELECT 1 / 0;", "2")


@pytest.fixture
async def empty_url(postgres_url: str) -> AsyncGenerator[str, None]:
    name = f"empty_{token_hex(6)}"
    server = postgres_url.rpartition("/")[0]
    await execute(f"{server}/postgres", f"CREATE DATABASE {name}")
    yield f"{server}/{name}"
    await execute(f"{server}/postgres", f"DROP DATABASE {name} WITH (FORCE)")


async def tables(url: str) -> set[str]:
    connection = await connect(url)
    try:
        rows = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        return {row["tablename"] for row in rows}
    finally:
        await connection.close()


def add(monkeypatch: pytest.MonkeyPatch, *more: Migration) -> None:
    known = [*migrations(), *more]
    monkeypatch.setattr(module, "migrations", lambda: known)


async def test_an_empty_database_gets_every_migration_once(empty_url: str) -> None:
    assert await pending(empty_url) == ALL
    assert await tables(empty_url) == set()
    assert await migrate(empty_url) == ALL
    assert await pending(empty_url) == []
    assert await migrate(empty_url) == []


async def test_concurrent_migrations_apply_each_step_once(empty_url: str) -> None:
    applied = await asyncio.gather(*(migrate(empty_url) for _ in range(4)))
    assert sorted(applied) == [[], [], [], ALL]


async def test_a_migration_applies_whole_or_not_at_all(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(monkeypatch, GOOD, BROKEN)
    with pytest.raises(MigrationFailed, match=r"9002_broken\.sql.*division by zero"):
        await migrate(database_url)
    assert await pending(database_url) == [BROKEN.name]
    found = await tables(database_url)
    assert {"good", "better"} <= found
    assert "half" not in found


async def test_a_database_ahead_of_the_code_is_accepted(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """During a rollout, old processes start again with the new tables, and a release may be withdrawn."""
    with monkeypatch.context() as newer:
        add(newer, GOOD)
        assert await migrate(database_url) == [GOOD.name]
    assert await migrate(database_url) == []
    opened = await open_database(load(database_url=database_url))
    await opened.check()
    await opened.close()


def test_a_migration_says_that_it_breaks_with_older_versions() -> None:
    sql = b"-- Names become ids.\n-- breaks older versions: they read the name\nSELECT 1;"
    assert [migration_of("1_a.sql", text).breaking for text in (sql, b"SELECT 1;")] == [True, False]


async def test_a_database_with_which_this_version_cannot_work_is_refused(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as newer:
        add(newer, Migration("9999_later.sql", "SELECT 1", "x", breaking=True))
        await migrate(database_url)
    with pytest.raises(SchemaMismatch, match=r"9999_later\.sql.*newer version"):
        await migrate(database_url)
    with pytest.raises(SchemaMismatch, match=r"9999_later\.sql"):
        await open_database(load(database_url=database_url))


async def test_a_migration_that_changed_after_it_was_applied_is_refused(database_url: str) -> None:
    await execute(database_url, f"UPDATE migrations SET checksum = 'x' WHERE name = '{ALL[0]}'")
    with pytest.raises(SchemaMismatch, match=rf"{ALL[0]}.*restore the file"):
        await migrate(database_url)


async def test_a_migration_that_should_have_come_earlier_is_refused(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(monkeypatch, Migration("0000_late.sql", "SELECT 1", "0"))
    with pytest.raises(SchemaMismatch, match=r"0000_late\.sql.*later number"):
        await migrate(database_url)


async def test_a_database_behind_the_code_is_not_opened(empty_url: str) -> None:
    with pytest.raises(SchemaMismatch, match="run `batchwright migrate`"):
        await open_database(load(database_url=empty_url))


async def test_a_refused_password_is_reported_at_once_and_not_shown(database_url: str) -> None:
    user, _, rest = database_url.rpartition("@")
    wrong = f"{user.rpartition(':')[0]}:secret-one@{rest}"
    with pytest.raises(DatabaseUnavailable, match="refuses BATCHWRIGHT_DATABASE_URL") as refused:
        await open_database(load(database_url=wrong))
    assert "secret-one" not in str(refused.value)
    assert rest in str(refused.value)


async def test_a_migration_that_waits_for_a_busy_table_does_not_block_other_queries(
    empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await migrate(empty_url)
    add(monkeypatch, Migration("9001_wide.sql", "ALTER TABLE files ADD COLUMN wide text", "1"))
    monkeypatch.setattr(driver, "LOCK_SECONDS", 0.1)
    backup = await connect(empty_url)
    async with backup.transaction():
        await backup.fetch("SELECT * FROM files")
        with pytest.raises(DatabaseUnavailable, match=r"'9001_wide.sql' waited .* run it again"):
            await migrate(empty_url)
    await backup.close()
    assert await migrate(empty_url) == ["9001_wide.sql"]


@pytest.mark.slow
async def test_migrations_that_are_killed_repeatedly_continue_where_they_were(
    empty_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each process except the last one is killed as soon as it has applied a migration."""
    shutil.copytree(ROOT / "batchwright", tmp_path / "batchwright")
    more = [migration_of(f"900{at}_more.sql", b"CREATE TABLE more_%d ();" % at) for at in range(6)]
    for migration in more:
        (tmp_path / "batchwright" / "database" / "migrations" / migration.name).write_text(migration.sql)
    add(monkeypatch, *more)
    for _ in range(4):
        before = await applied(empty_url)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "batchwright.starter", "migrate"),
            env={**os.environ, "BATCHWRIGHT_DATABASE_URL": empty_url, "PYTHONPATH": str(tmp_path)},
            stdout=asyncio.subprocess.DEVNULL,
        )
        while await applied(empty_url) == before and process.returncode is None:
            await asyncio.sleep(0.005)
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    left = await pending(empty_url)
    assert await migrate(empty_url) == left
    assert await pending(empty_url) == []
    assert await tables(empty_url) == await tables_at_once(empty_url)


async def applied(url: str) -> list[str]:
    """Return the names of the applied migrations, in order."""
    missing = await pending(url)
    return [migration.name for migration in module.migrations() if migration.name not in missing]


async def tables_at_once(url: str) -> set[str]:
    """Apply all migrations to a new database, and return its tables."""
    server, _, name = url.rpartition("/")
    await execute(f"{server}/postgres", f"CREATE DATABASE {name}_whole")
    try:
        await migrate(f"{server}/{name}_whole")
        return await tables(f"{server}/{name}_whole")
    finally:
        await execute(f"{server}/postgres", f"DROP DATABASE {name}_whole WITH (FORCE)")
