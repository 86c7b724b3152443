"""Opens connections with the database driver asyncpg. Declares types, because asyncpg has no annotations."""

from contextlib import AbstractAsyncContextManager
from typing import Protocol

import asyncpg  # pyright: ignore[reportMissingTypeStubs]

Row = asyncpg.Record

CONNECT_SECONDS = 10
QUERY_SECONDS = 30
IDLE_SECONDS = 60  # time after which PostgreSQL ends a transaction whose client is silent
LOCK_SECONDS = 15  # how long a migration waits for a locked table, while other queries wait behind it

ServerError = asyncpg.PostgresError
TRANSIENT_ERRORS = (
    OSError,  # includes timeouts
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.InterfaceError,  # the connection or pool is closed
    asyncpg.InternalClientError,  # the server closed an idle connection and its message is still unread
    asyncpg.InsufficientResourcesError,
    asyncpg.OperatorInterventionError,
    asyncpg.PostgresSystemError,
    asyncpg.TransactionRollbackError,  # deadlock, serialization
    asyncpg.ReadOnlySQLTransactionError,  # a standby that is not promoted yet
    asyncpg.FeatureNotSupportedError,  # an unlogged table of a standby; a table that changed after `prepare`
    asyncpg.ObjectNotInPrerequisiteStateError,  # a lock or the database is not available
)
# Errors of a server that does not lead. Its connections stay open after the address has moved to another one.
ReadOnlyServer = asyncpg.ReadOnlySQLTransactionError
STANDBY_ERRORS = (ReadOnlyServer, asyncpg.FeatureNotSupportedError)
# Errors because of wrong tables or roles. They end once the operator has corrected the tables or the roles.
SCHEMA_ERRORS = (
    asyncpg.InsufficientPrivilegeError,
    asyncpg.UndefinedTableError,
    asyncpg.UndefinedColumnError,
    asyncpg.UndefinedFunctionError,
)
ReferenceMissing = asyncpg.ForeignKeyViolationError
LockTimeout = asyncpg.LockNotAvailableError
LOGIN_ERRORS = (asyncpg.InvalidAuthorizationSpecificationError, asyncpg.InvalidCatalogNameError)


def is_rolled_back(error: BaseException) -> bool:
    """Return True if the error means that PostgreSQL has undone the statement and its transaction.

    Return True for an error that PostgreSQL reports with the severity ERROR. Return False for two kinds of
    errors, because a COMMIT may have been executed before the error:

    - errors of the driver
    - errors with which PostgreSQL ends the connection (FATAL, PANIC)
    """
    return isinstance(error, ServerError) and getattr(error, "severity_en", None) == "ERROR"


class Session(Protocol):
    async def execute(self, query: str, *args: object) -> str: ...
    async def fetch(self, query: str, *args: object) -> list[Row]: ...
    async def fetchrow(self, query: str, *args: object) -> Row | None: ...
    def transaction(self) -> AbstractAsyncContextManager[object]: ...


class PreparedStatement(Protocol):
    async def fetch(self, *args: object) -> list[Row]: ...


class PreparingSession(Session, Protocol):
    async def prepare(self, query: str) -> PreparedStatement:
        """Prepare a statement. The server closes the statement when nothing references the returned object
        any longer.
        """
        ...

    def terminate(self) -> None:
        """Close the connection without waiting. The pool opens another one when it is needed."""
        ...


class DatabaseConnection(Session, Protocol):
    async def close(self) -> None: ...


class Pool(Protocol):
    def acquire(self, *, timeout: float) -> AbstractAsyncContextManager[PreparingSession]: ...
    async def close(self) -> None: ...
    def terminate(self) -> None: ...


async def connect(database_url: str) -> DatabaseConnection:
    return await asyncpg.connect(database_url, timeout=CONNECT_SECONDS)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


async def create_driver_pool(database_url: str, size: int) -> Pool:
    """Create a pool of at most `size` connections. A connection is opened when it is first needed.

    Reasons for the arguments that asyncpg gets:

    - `min_size=0`: if `min_size` is greater, asyncpg logs a traceback every second for each connection that
      it cannot open during an outage.
    - `reset`: no statement resets a connection when it returns to the pool. This is safe, because all
      settings, locks and cursors that this product uses end with their transaction.
    - `server_settings`: only the application name and the time zone. Poolers such as PgBouncer refuse other
      parameters at the start of a connection, so `_configure` sets them with a statement.
    """
    return await asyncpg.create_pool(  # pyright: ignore[reportUnknownMemberType, reportReturnType]
        database_url,
        min_size=0,
        max_size=size,
        timeout=CONNECT_SECONDS,
        command_timeout=QUERY_SECONDS,
        init=_configure,
        reset=_skip_reset,
        server_settings={"application_name": "batchwright", "timezone": "UTC"},
    )


async def _configure(session: Session) -> None:
    """Configure a new connection: turn off JIT compilation, and set a time limit for idle transactions.

    If a client disappears during a transaction, PostgreSQL ends the transaction after this time limit, and
    releases the locks of the transaction.
    """
    await session.execute(f"SET jit = off; SET idle_in_transaction_session_timeout = '{IDLE_SECONDS}s'")


async def _skip_reset(_: object) -> None:
    pass
