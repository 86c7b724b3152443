"""What an operator asks of the database: does it answer, what time is it there, are its tables ours."""

from datetime import datetime
from typing import NamedTuple

from batchwright.database import driver
from batchwright.database.connection import address, translated
from batchwright.database.errors import SchemaMismatch
from batchwright.database.migrate import missing_names


class Inspection(NamedTuple):
    where: str  # without user and password
    version: str
    now: datetime
    missing: list[str]  # migrations
    mismatch: str  # why the tables are not those of this version; empty: they are, or can be


async def inspect(database_url: str) -> Inspection:
    """Raises DatabaseUnavailable."""
    where = address(database_url)
    with translated(where):
        connection = await driver.connect(database_url)
        try:
            row = await connection.fetchrow(
                "SELECT current_setting('server_version') AS version, clock_timestamp() AS now"
            )
            assert row is not None
            missing, mismatch = await _tables(connection)
        finally:
            await connection.close()
    return Inspection(where, row["version"], row["now"], missing, mismatch)


async def _tables(session: driver.Session) -> tuple[list[str], str]:
    try:
        return await missing_names(session), ""
    except SchemaMismatch as error:
        return [], str(error)
