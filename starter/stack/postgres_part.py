"""PostgreSQL as a kept part: its launcher blocks, so it runs in a thread."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from starter.stack.errors import StackError
from starter.stack.part import POLL_SECONDS
from starter.stack.postgres import EmbeddedPostgres


class PostgresPart:
    """Kept. A server that outlived a killed `dev` is taken over, and stopped like our own."""

    name = "postgres"

    def __init__(self, server: EmbeddedPostgres, spawned: Callable[[], None]) -> None:
        self._server = server
        self._spawned = spawned
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
        # A thread cannot be cancelled: whoever gives up waiting leaves it to stop().
        await asyncio.shield(self._starting)
        self._spawned()

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
