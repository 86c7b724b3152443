"""Connection pool to PostgreSQL. It translates errors of the driver, and can wait for a starting server."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import cast
from urllib.parse import urlsplit

from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_exponential

from batchwright.database import driver
from batchwright.database.driver import CONNECT_SECONDS, QUERY_SECONDS, PreparingSession, Row, Session
from batchwright.database.errors import DatabaseUnavailable, OutcomeUnknown
from batchwright.rules.json_text import storable

log = logging.getLogger(__name__)


class StorableSession(Session):
    """A database session. In text arguments, it replaces characters that PostgreSQL cannot store."""

    def __init__(self, session: PreparingSession) -> None:
        self._session = session

    async def execute(self, query: str, *args: object) -> str:
        return await self._session.execute(query, *map(_storable, args))

    async def fetch(self, query: str, *args: object) -> list[Row]:
        return await self._session.fetch(query, *map(_storable, args))

    async def fetchrow(self, query: str, *args: object) -> Row | None:
        return await self._session.fetchrow(query, *map(_storable, args))

    async def fetch_with_custom_plan(self, query: str, *args: object) -> list[Row]:
        """Run a query with a plan that PostgreSQL makes for the values in `args`, and return the rows.

        Use this method if the best plan depends on the values, for example on how many batches have a certain
        tag. With `fetch`, PostgreSQL may use one plan for all values. This method sends one more request to
        PostgreSQL than `fetch`.
        """
        statement = await self._session.prepare(query)
        return await statement.fetch(*map(_storable, args))

    def transaction(self) -> AbstractAsyncContextManager[object]:
        return self._session.transaction()


class ConnectionPool:
    """Connection pool to PostgreSQL. It translates errors of the driver to exceptions of this package.

    - DatabaseUnavailable: no statement was executed, or PostgreSQL rolled the executed statements back.
    - OutcomeUnknown (a subclass of DatabaseUnavailable): the response was lost, so a COMMIT may have been
      executed.
    - Errors in the SQL are raised unchanged.
    """

    def __init__(self, pool: driver.Pool, database_url: str) -> None:
        self._pool, self._where = pool, address(database_url)

    async def execute(self, query: str, *args: object) -> None:
        async with self.session() as session:
            await session.execute(query, *args)

    async def fetch(self, query: str, *args: object) -> list[Row]:
        async with self.session() as session:
            return await session.fetch(query, *args)

    async def fetchrow(self, query: str, *args: object) -> Row | None:
        async with self.session() as session:
            return await session.fetchrow(query, *args)

    @asynccontextmanager
    async def session(self) -> AsyncGenerator[StorableSession, None]:
        with translated(self._where):
            async with self._pool.acquire(timeout=CONNECT_SECONDS) as connection:
                with translated(self._where, sent=True), _replaced_if_read_only(connection):
                    yield StorableSession(connection)

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[Session, None]:
        with translated(self._where):
            async with self._pool.acquire(timeout=CONNECT_SECONDS) as connection:
                with translated(self._where, sent=True), _replaced_if_read_only(connection):
                    async with connection.transaction():
                        yield StorableSession(connection)

    async def check(self) -> None:
        """Check that the database answers and accepts changes. Raises DatabaseUnavailable if it does not."""
        async with self.session() as session:
            row = await session.fetchrow("SELECT current_setting('transaction_read_only') AS read_only")
            if row is not None and row["read_only"] == "on":
                raise driver.ReadOnlyServer("the server accepts no changes")

    async def contact(self) -> None:
        """Connect and run one query. Exceptions of the driver asyncpg are raised unchanged."""
        async with self._pool.acquire(timeout=CONNECT_SECONDS) as connection:
            await connection.execute("SELECT 1")

    def patient(
        self, seconds: float, failures: tuple[type[Exception], ...] = (DatabaseUnavailable,)
    ) -> AsyncRetrying:
        """Return an object that repeats a call as long as the call raises one of `failures`.

        After `seconds`, the exception of the last call is raised. For the use of the object, see tenacity's
        `AsyncRetrying`.
        """
        return AsyncRetrying(
            retry=retry_if_exception_type(failures),
            stop=stop_after_delay(seconds),
            wait=wait_exponential(multiplier=0.1, max=3.0),
            before_sleep=lambda _: log.warning(
                "PostgreSQL does not answer yet", extra={"address": self._where}
            ),
            reraise=True,
        )

    async def close(self) -> None:
        """Wait at most QUERY_SECONDS for running queries, then close all connections."""
        try:
            async with asyncio.timeout(QUERY_SECONDS):
                await self._pool.close()
        except TimeoutError:
            self._pool.terminate()


async def open_connection_pool(database_url: str, *, size: int, patience_seconds: float) -> ConnectionPool:
    """Open a pool of at most `size` connections. Return when PostgreSQL has answered a first query.

    Raises:
        DatabaseUnavailable: PostgreSQL did not answer within `patience_seconds`, or it rejected the user, the
            password or the database name in the URL.
    """
    where = address(database_url)
    with translated(where):
        pool = ConnectionPool(await driver.create_driver_pool(database_url, size), database_url)
        try:
            await pool.patient(patience_seconds, driver.TRANSIENT_ERRORS)(pool.contact)
        except BaseException:
            await pool.close()
            raise
        return pool


def address(database_url: str) -> str:
    """Return `host:port/database` of a database URL, without user and password, for use in messages."""
    parts = urlsplit(database_url)
    return parts.netloc.rpartition("@")[2] + parts.path


def _storable(argument: object) -> object:
    if isinstance(argument, str):
        return storable(argument)
    if isinstance(argument, list):
        return [_storable(item) for item in cast("list[object]", argument)]
    return argument


@contextmanager
def translated(where: str, *, sent: bool = False) -> Generator[None, None, None]:
    """Context manager that replaces errors of the driver by DatabaseUnavailable.

    Args:
        where: address of PostgreSQL, for the message.
        sent: True if the block sends statements. The error is then OutcomeUnknown, unless PostgreSQL has
            reported that it rolled the statement back.
    """
    try:
        yield
    except driver.LOGIN_ERRORS as error:
        raise DatabaseUnavailable(
            f"PostgreSQL at {where} refuses BATCHWRIGHT_DATABASE_URL: {error}"
        ) from error
    except driver.SCHEMA_ERRORS as error:
        raise DatabaseUnavailable(f"PostgreSQL at {where} refuses a statement: {error}") from error
    except driver.TRANSIENT_ERRORS as error:
        kind = OutcomeUnknown if sent and not driver.is_rolled_back(error) else DatabaseUnavailable
        raise kind(
            f"PostgreSQL does not answer at {where} (BATCHWRIGHT_DATABASE_URL): {_reason(error)}."
        ) from error


@contextmanager
def _replaced_if_read_only(connection: PreparingSession) -> Generator[None, None, None]:
    """Context manager that closes the connection if the server accepts no changes.

    After a failover, an open connection may lead to a server that is now a standby, although new connections
    lead to the new primary. If such a connection stayed open, the pool would use it again and again.
    """
    try:
        yield
    except driver.STANDBY_ERRORS:
        connection.terminate()
        raise


def _reason(error: BaseException) -> str:
    """Return the text of `error` for a message; if it is empty, return the name of its class."""
    if isinstance(error, ConnectionRefusedError):
        return "the connection was refused"
    return str(error).rstrip(".") or type(error).__name__
