"""Applies missing migrations (SQL files that create or change tables), or checks the state of a database.

An advisory lock in PostgreSQL makes concurrent runs wait for each other.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import NamedTuple

from batchwright.database import driver
from batchwright.database.errors import DatabaseUnavailable, MigrationFailed, SchemaMismatch
from batchwright.database.pool import address, translated
from batchwright.database.sql import Migration, migrations

_LOCK = 0x6261746368  # key of the advisory lock: "batch" in ASCII
_TABLE = """
CREATE TABLE IF NOT EXISTS migrations (
    name text PRIMARY KEY, checksum text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now());
ALTER TABLE migrations ADD COLUMN IF NOT EXISTS breaking boolean NOT NULL DEFAULT false
"""
# This query also works if the table does not have the column `breaking` yet.
_APPLIED = """
SELECT name, checksum, coalesce((to_jsonb(migrations) ->> 'breaking')::boolean, false) AS breaking
FROM migrations ORDER BY name COLLATE "C"
"""
_INSERT = "INSERT INTO migrations (name, checksum, breaking) VALUES ($1, $2, $3)"


class DatabaseInspection(NamedTuple):
    """Version and time of a PostgreSQL server, and whether its tables fit this version of the code."""

    where: str  # host and database, without user and password
    version: str
    now: datetime
    missing: list[str]  # migrations to apply
    mismatch: str  # why the tables do not fit this version; empty if they fit once `missing` is applied


async def migrate(database_url: str) -> list[str]:
    """Apply missing migrations, each in a transaction of its own, and return their names.

    Raises:
        SchemaMismatch: this version cannot use the tables, the file of an applied migration was changed, or a
            missing migration is older than an applied one.
        MigrationFailed: PostgreSQL rejected the SQL of a migration, which was rolled back.
        DatabaseUnavailable: PostgreSQL does not answer, or another session locks a table for more than
            LOCK_SECONDS. A repeated call continues with the first missing migration.
    """
    async with _connected(database_url) as connection:
        await connection.execute("SELECT pg_advisory_lock($1)", _LOCK)  # released when the connection closes
        await connection.execute(_TABLE)
        missing = await _missing(connection)
        for migration in missing:
            await _apply(connection, migration)
        return [migration.name for migration in missing]


async def pending(database_url: str) -> list[str]:
    """Return the names of the migrations that `migrate` would apply, without applying them.

    Raises SchemaMismatch and DatabaseUnavailable in the same cases as `migrate`.
    """
    async with _connected(database_url) as connection:
        return await missing_names(connection)


async def missing_names(session: driver.Session) -> list[str]:
    return [migration.name for migration in await _missing(session)]


async def inspect(database_url: str) -> DatabaseInspection:
    """Return a PostgreSQL server's version and time, and whether its tables fit this version of the code.

    Raises DatabaseUnavailable if PostgreSQL does not answer.
    """
    async with _connected(database_url) as connection:
        row = await connection.fetchrow(
            "SELECT current_setting('server_version') AS version, clock_timestamp() AS now"
        )
        assert row is not None
        try:
            missing, mismatch = await missing_names(connection), ""
        except SchemaMismatch as error:
            missing, mismatch = list[str](), str(error)
    return DatabaseInspection(address(database_url), row["version"], row["now"], missing, mismatch)


async def _apply(connection: driver.DatabaseConnection, migration: Migration) -> None:
    try:
        async with connection.transaction():
            await connection.execute(f"SET LOCAL lock_timeout = '{driver.LOCK_SECONDS}s'")
            await connection.execute(migration.sql)
            await connection.execute(_INSERT, migration.name, migration.checksum, migration.breaking)
    except driver.LockTimeout as error:
        raise DatabaseUnavailable(
            f"The migration {migration.name!r} waited {driver.LOCK_SECONDS} s for a table that another "
            "session has locked, for example a backup, and was rolled back: run it again afterwards."
        ) from error
    except driver.TRANSIENT_ERRORS:
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
    last = applied[-1][0] if applied else ""
    for name in known:
        if name < last:
            raise SchemaMismatch(
                f"The migration {name!r} was never applied, but {last!r} was: give it a later number."
            )
    return list(known.values())


async def _applied(session: driver.Session) -> list[tuple[str, str, bool]]:
    exists = await session.fetchrow("SELECT to_regclass('migrations') IS NOT NULL AS it")
    if exists is None or not exists["it"]:
        return []
    rows = await session.fetch(_APPLIED)
    return [(row["name"], row["checksum"], row["breaking"]) for row in rows]


@asynccontextmanager
async def _connected(database_url: str) -> AsyncGenerator[driver.DatabaseConnection, None]:
    with translated(address(database_url)):
        connection = await driver.connect(database_url)
        try:
            yield connection
        finally:
            await connection.close()
