"""Connections to PostgreSQL: one pool, its errors as ours, contact at start-up."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from urllib.parse import urlsplit

from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_exponential

from batchwright.database import driver
from batchwright.database.driver import CONNECT_SECONDS, QUERY_SECONDS, Row, Session
from batchwright.database.errors import DatabaseUnavailable, OutcomeUnknown

log = logging.getLogger(__name__)


class Connections:
    """A pool; everything it raises is a DatabaseUnavailable, or a mistake of ours.

    Without a connection nothing happened; once there was one it is an OutcomeUnknown: a COMMIT whose answer
    is lost may have been heard.
    """

    def __init__(self, pool: driver.Pool, database_url: str) -> None:
        self._pool = pool
        self._url, self._where = database_url, address(database_url)

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
    async def session(self) -> AsyncGenerator[Session, None]:
        with translated(self._where):
            async with self._pool.acquire(timeout=CONNECT_SECONDS) as connection:
                with translated(self._where, OutcomeUnknown):
                    yield connection

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[Session, None]:
        with translated(self._where):
            async with self._pool.acquire(timeout=CONNECT_SECONDS) as connection:
                with translated(self._where, OutcomeUnknown):
                    async with connection.transaction():
                        yield connection

    @asynccontextmanager
    async def listening(
        self, channel: str, heard: Callable[[str], None]
    ) -> AsyncGenerator[asyncio.Event, None]:
        """On a connection beside the pool's; the event is set once it is lost."""
        lost = asyncio.Event()

        def hear(_: object, __: int, ___: str, word: str) -> None:
            heard(word)

        with translated(self._where):
            listener = await driver.open_listener(self._url)
        try:
            with translated(self._where):
                listener.add_termination_listener(lambda _: lost.set())
                await listener.add_listener(channel, hear)
            yield lost
        finally:
            with suppress(*driver.PASSING):
                await listener.close(timeout=CONNECT_SECONDS)

    async def contact(self) -> None:
        """Raises what asyncpg raises."""
        async with self._pool.acquire(timeout=CONNECT_SECONDS) as connection:
            await connection.execute("SELECT 1")

    def patient(
        self, seconds: float, failures: tuple[type[Exception], ...] = (DatabaseUnavailable,)
    ) -> AsyncRetrying:
        """Calls again for so long what a server that starts, or starts again, cannot answer yet."""
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
        """Waits for what is running, at most as long as a query may take."""
        try:
            async with asyncio.timeout(QUERY_SECONDS):
                await self._pool.close()
        except TimeoutError:
            self._pool.terminate()


async def connections(database_url: str, *, size: int, patience_seconds: float) -> Connections:
    """A pool that has a connection already.

    Raises:
        DatabaseUnavailable: none within `patience_seconds`; at once if user, password or database are wrong.
    """
    where = address(database_url)
    with translated(where):
        pool = Connections(await driver.open_pool(database_url, size), database_url)
        try:
            await pool.patient(patience_seconds, driver.PASSING)(pool.contact)
        except BaseException:
            await pool.close()
            raise
        return pool


def address(database_url: str) -> str:
    """The URL as messages may show it: without user and password."""
    parts = urlsplit(database_url)
    return parts.netloc.rpartition("@")[2] + parts.path


@contextmanager
def translated(
    where: str, kind: type[DatabaseUnavailable] = DatabaseUnavailable
) -> Generator[None, None, None]:
    try:
        yield
    except driver.REFUSED as error:
        raise DatabaseUnavailable(
            f"PostgreSQL at {where} refuses BATCHWRIGHT_DATABASE_URL: {error}"
        ) from error
    except driver.PASSING as error:
        raise kind(
            f"PostgreSQL does not answer at {where} (BATCHWRIGHT_DATABASE_URL): {_reason(error)}."
        ) from error


def _reason(error: BaseException) -> str:
    """In words, where the driver's own are Python's."""
    if isinstance(error, ConnectionRefusedError):
        return "the connection was refused"
    return str(error).rstrip(".") or type(error).__name__
