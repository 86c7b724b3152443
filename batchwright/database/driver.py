"""As much of asyncpg as we use, with the types it comes without."""

from contextlib import AbstractAsyncContextManager
from typing import Protocol

import asyncpg  # pyright: ignore[reportMissingTypeStubs]

Row = asyncpg.Record

CONNECT_SECONDS = 10
QUERY_SECONDS = 30


class Session(Protocol):
    async def execute(self, query: str, *args: object) -> str: ...
    async def fetch(self, query: str, *args: object) -> list[Row]: ...
    async def fetchrow(self, query: str, *args: object) -> Row | None: ...
    def transaction(self) -> AbstractAsyncContextManager[object]: ...


class Connection(Session, Protocol):
    async def close(self) -> None: ...


class Pool(Protocol):
    def acquire(self, *, timeout: float) -> AbstractAsyncContextManager[Session]: ...
    async def close(self) -> None: ...
    def terminate(self) -> None: ...


async def connect(database_url: str) -> Connection:
    return await asyncpg.connect(database_url, timeout=CONNECT_SECONDS)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


async def open_pool(database_url: str, size: int) -> Pool:
    """A pool with one connection made; statements are prepared once a connection."""
    return await asyncpg.create_pool(  # pyright: ignore[reportUnknownMemberType, reportReturnType]
        database_url,
        min_size=1,
        max_size=size,
        timeout=CONNECT_SECONDS,
        command_timeout=QUERY_SECONDS,
        server_settings={"application_name": "batchwright", "jit": "off", "timezone": "UTC"},
    )
