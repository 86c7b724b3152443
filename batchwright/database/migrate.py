"""Brings the tables to the shape this version needs; run by one process at a time, whoever else tries."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from batchwright.database import driver
from batchwright.database.connection import address, translated
from batchwright.database.errors import DatabaseUnavailable, MigrationFailed, SchemaMismatch
from batchwright.database.sql import Migration, migrations

_LOCK = 0x6261746368  # of PostgreSQL's advisory locks: "batch"
_TABLE = """
CREATE TABLE IF NOT EXISTS migrations (
    name text PRIMARY KEY, checksum text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now());
ALTER TABLE migrations ADD COLUMN IF NOT EXISTS breaking boolean NOT NULL DEFAULT false
"""
# Also of a table that has no such column yet.
_APPLIED = """
SELECT name, checksum, coalesce((to_jsonb(migrations) ->> 'breaking')::boolean, false) AS breaking
FROM migrations ORDER BY name COLLATE "C"
"""
_INSERT = "INSERT INTO migrations (name, checksum, breaking) VALUES ($1, $2, $3)"


async def migrate(database_url: str) -> list[str]:
    """Applies what is missing, each migration in a transaction of its own; the names of those applied.

    Raises:
        SchemaMismatch: a newer version has made tables this one cannot live with, or an applied migration
            has changed since.
        MigrationFailed: one could not be applied.
        DatabaseUnavailable: a retry goes on where this one stopped; also where a backup uses a table
            for long: whoever comes after a migration that waits has to wait too.
    """
    async with _connected(database_url) as connection:
        await connection.execute("SELECT pg_advisory_lock($1)", _LOCK)  # given back with the connection
        await connection.execute(_TABLE)
        missing = await _missing(connection)
        for migration in missing:
            await _apply(connection, migration)
        return [migration.name for migration in missing]


async def pending(database_url: str) -> list[str]:
    """What `migrate` would apply; it changes nothing. Raises the same."""
    async with _connected(database_url) as connection:
        return await missing_names(connection)


async def missing_names(session: driver.Session) -> list[str]:
    return [migration.name for migration in await _missing(session)]


async def _apply(connection: driver.Connection, migration: Migration) -> None:
    try:
        async with connection.transaction():
            await connection.execute(f"SET LOCAL lock_timeout = '{driver.LOCK_SECONDS}s'")
            await connection.execute(migration.sql)
            await connection.execute(_INSERT, migration.name, migration.checksum, migration.breaking)
    except driver.LockTimeout as error:
        raise DatabaseUnavailable(
            f"The migration {migration.name!r} waited {driver.LOCK_SECONDS} s for a table that somebody uses "
            "for long, such as a backup, and nothing of it was applied: run it again afterwards."
        ) from error
    except driver.PASSING:
        raise
    except driver.ServerError as error:
        raise MigrationFailed(migration.name, str(error)) from error


async def _missing(session: driver.Session) -> list[Migration]:
    known = {migration.name: migration for migration in migrations()}
    applied = await _applied(session)
    for name, checksum, breaking in applied:
        migration = known.pop(name, None)
        if migration is None and breaking:
            raise SchemaMismatch(
                f"The database has the migration {name!r}, with which this version cannot work: "
                "run the newer version of Batchwright that made it."
            )
        if migration is not None and migration.checksum != checksum:
            raise SchemaMismatch(
                f"The migration {name!r} is not the one that was applied to the database: "
                "restore the file, and put the change into a new migration."
            )
    _refuse_gaps(list(known), [name for name, _, _ in applied])
    return list(known.values())


def _refuse_gaps(missing: list[str], applied: list[str]) -> None:
    late = [name for name in missing if applied and name < applied[-1]]
    if late:
        raise SchemaMismatch(
            f"The migration {late[0]!r} was never applied, but {applied[-1]!r} was: give it a later number."
        )


async def _applied(session: driver.Session) -> list[tuple[str, str, bool]]:
    exists = await session.fetchrow("SELECT to_regclass('migrations') IS NOT NULL AS it")
    if exists is None or not exists["it"]:
        return []
    rows = await session.fetch(_APPLIED)
    return [(row["name"], row["checksum"], row["breaking"]) for row in rows]


@asynccontextmanager
async def _connected(database_url: str) -> AsyncGenerator[driver.Connection, None]:
    with translated(address(database_url)):
        connection = await driver.connect(database_url)
        try:
            yield connection
        finally:
            await connection.close()
