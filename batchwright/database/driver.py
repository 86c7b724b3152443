"""As much of asyncpg as we use, with the types it comes without."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import asyncpg  # pyright: ignore[reportMissingTypeStubs]

Row = asyncpg.Record

CONNECT_SECONDS = 10
QUERY_SECONDS = 30
IDLE_SECONDS = 60  # of a transaction from whose process nothing more is heard
LOCK_SECONDS = 15  # that a migration may wait for a table, with everybody else behind it

ServerError = asyncpg.PostgresError
PASSING = (
    OSError,  # timeouts too
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.InterfaceError,  # a connection or pool that is closed
    asyncpg.InternalClientError,  # the server's last word to an idle connection was not read yet
    asyncpg.InsufficientResourcesError,
    asyncpg.OperatorInterventionError,
    asyncpg.PostgresSystemError,
    asyncpg.TransactionRollbackError,  # deadlock, serialization
    asyncpg.ReadOnlySQLTransactionError,  # a standby, before it takes over
    asyncpg.ObjectNotInPrerequisiteStateError,  # a lock not had, a database that takes no connections
    asyncpg.InvalidCachedStatementError,  # the tables changed under a prepared statement
)
ReferenceMissing = asyncpg.ForeignKeyViolationError
LockTimeout = asyncpg.LockNotAvailableError
REFUSED = (asyncpg.InvalidAuthorizationSpecificationError, asyncpg.InvalidCatalogNameError)


def constraint_of(error: ServerError) -> str:
    """The name of what was violated; asyncpg sets it without a type."""
    return str(getattr(error, "constraint_name", ""))


class Session(Protocol):
    async def execute(self, query: str, *args: object) -> str: ...
    async def fetch(self, query: str, *args: object) -> list[Row]: ...
    async def fetchrow(self, query: str, *args: object) -> Row | None: ...
    def transaction(self) -> AbstractAsyncContextManager[object]: ...


class Connection(Session, Protocol):
    async def close(self) -> None: ...


class Listener(Protocol):
    async def add_listener(self, channel: str, callback: Callable[[object, int, str, str], None]) -> None: ...
    def add_termination_listener(self, callback: Callable[[object], None]) -> None: ...
    def close(self, *, timeout: float) -> Awaitable[None]: ...


class Pool(Protocol):
    def acquire(self, *, timeout: float) -> AbstractAsyncContextManager[Session]: ...
    async def close(self) -> None: ...
    def terminate(self) -> None: ...


async def connect(database_url: str) -> Connection:
    return await asyncpg.connect(database_url, timeout=CONNECT_SECONDS)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


async def open_listener(database_url: str) -> Listener:
    """A connection for what is told on channels: a name of its own shows it among the others."""
    return await asyncpg.connect(  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        database_url,
        timeout=CONNECT_SECONDS,
        command_timeout=CONNECT_SECONDS,
        server_settings={"application_name": "batchwright-listener"},
    )


async def open_pool(database_url: str, size: int) -> Pool:
    """A pool that makes connections as they are needed, and prepares a statement once a connection.

    It keeps none in reserve: asyncpg logs a traceback a second for each reserve it cannot make in an outage.
    A connection that is given back is not reset by a statement more: what we send leaves nothing to be reset,
    for settings, locks and cursors end with their transaction. What it begins with is a statement of its own:
    poolers refuse parameters that they do not know.
    """
    return await asyncpg.create_pool(  # pyright: ignore[reportUnknownMemberType, reportReturnType]
        database_url,
        min_size=0,
        max_size=size,
        timeout=CONNECT_SECONDS,
        command_timeout=QUERY_SECONDS,
        init=_begin,
        reset=_as_it_is,
        server_settings={"application_name": "batchwright", "timezone": "UTC"},
    )


async def _begin(session: Session) -> None:
    """A machine that is gone with a transaction open would hold its locks until TCP gives up, for hours."""
    await session.execute(f"SET jit = off; SET idle_in_transaction_session_timeout = '{IDLE_SECONDS}s'")


async def _as_it_is(_: object) -> None:
    pass
