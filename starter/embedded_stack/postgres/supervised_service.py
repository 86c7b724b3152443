"""Runs the embedded PostgreSQL as a service of the embedded stack, and creates Batchwright's database."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from batchwright.database import driver
from batchwright.database.errors import DatabaseError
from batchwright.database.migrate import migrate
from batchwright.starter.embedded_stack.errors import StackError
from batchwright.starter.embedded_stack.postgres.server_process import EmbeddedPostgres
from batchwright.starter.embedded_stack.service_process import POLL_SECONDS


class PostgresService:
    """The embedded PostgreSQL as a service that the supervisor can start, watch and stop.

    Args:
        on_spawn: function that is called after each start of the server.
    """

    name = "postgres"

    def __init__(self, server: EmbeddedPostgres, on_spawn: Callable[[], None]) -> None:
        self._server = server
        self._on_spawn = on_spawn
        self._starting: asyncio.Future[EmbeddedPostgres] | None = None

    @property
    def log(self) -> Path:
        return self._server.log

    @property
    def pid(self) -> int | None:
        return self._server.running.pid if self._server.running else None

    @property
    def dsn(self) -> str:
        return self._server.dsn

    async def start(self) -> None:
        self._starting = asyncio.ensure_future(asyncio.to_thread(self._server.start))
        # A thread cannot be cancelled. If this wait is cancelled, stop() waits for the thread.
        await asyncio.shield(self._starting)
        self._on_spawn()

    async def ended(self) -> str:
        while self._server.is_alive():  # noqa: ASYNC110 - the condition is another process's
            await asyncio.sleep(POLL_SECONDS)
        return "ended"

    async def stop(self, patience_seconds: float) -> None:
        if self._starting is not None:
            await asyncio.wait({self._starting})
            if isinstance(self._starting.exception(), StackError):
                return
        await asyncio.to_thread(self._server.stop, patience_seconds, adopted_too=True)


DATABASE_NAME = "batchwright"


async def prepare_database(server_url: str) -> str:
    """Create Batchwright's database on a server if it is missing, and apply the migrations.

    Return the URL of the database.

    Args:
        server_url: URL of any database on the server.

    Raises:
        StackError: the database cannot be created or migrated.
    """
    url = f"{server_url.rpartition('/')[0]}/{DATABASE_NAME}"
    try:
        await _create_database(server_url)
        await migrate(url)
    except (DatabaseError, driver.ServerError, OSError) as error:
        raise StackError(f"The database {DATABASE_NAME} cannot be prepared: {error}") from error
    return url


async def _create_database(server_url: str) -> None:
    connection = await driver.connect(server_url)
    try:
        if not await connection.fetchrow("SELECT 1 FROM pg_database WHERE datname = $1", DATABASE_NAME):
            await connection.execute(f"CREATE DATABASE {DATABASE_NAME}")
    finally:
        await connection.close()
