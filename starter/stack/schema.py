"""The database of a stack, and its tables."""

from batchwright.database import driver
from batchwright.database.errors import DatabaseError
from batchwright.database.migrate import migrate
from starter.stack.errors import StackError

DATABASE = "batchwright"


async def prepare_database(server_url: str) -> str:
    """The URL of our database on the server of `server_url`, made and migrated where that is needed."""
    url = f"{server_url.rpartition('/')[0]}/{DATABASE}"
    try:
        await _create(server_url)
        await migrate(url)
    except (DatabaseError, driver.ServerError, OSError) as error:
        raise StackError(f"The database {DATABASE} cannot be prepared: {error}") from error
    return url


async def _create(server_url: str) -> None:
    connection = await driver.connect(server_url)
    try:
        if not await connection.fetchrow("SELECT 1 FROM pg_database WHERE datname = $1", DATABASE):
            await connection.execute(f"CREATE DATABASE {DATABASE}")
    finally:
        await connection.close()
