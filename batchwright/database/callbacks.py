"""The table of calls by which backends tell of jobs."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime

from batchwright.database.callbacks_base import CallbacksTable, Told
from batchwright.database.connection import Connections
from batchwright.database.sql import queries

_CHANNEL = "batchwright_callbacks"


@dataclass(frozen=True)
class CallbackQueries:
    accept: str
    told: str
    ring: str
    empty: str
    forget: str


class Callbacks(CallbacksTable):
    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._sql = queries(CallbackQueries, "callbacks")

    async def accept(self, id: str, body: bytes | None, size: int, expires_at: datetime) -> bool:
        record = await self._connections.fetchrow(self._sql.accept, id, size, body, expires_at, _CHANNEL)
        return record is not None

    async def told(self, ids: Sequence[str]) -> list[Told]:
        records = await self._connections.fetch(self._sql.told, list(ids))
        return [Told(record["id"], record["size"], record["body"]) for record in records]

    def listening(self, heard: Callable[[str], None]) -> AbstractAsyncContextManager[asyncio.Event]:
        return self._connections.listening(_CHANNEL, heard)

    async def ring(self, word: str) -> None:
        await self._connections.execute(self._sql.ring, _CHANNEL, word)

    async def empty(self, ids: Sequence[str]) -> None:
        await self._connections.execute(self._sql.empty, list(ids))

    async def forget(self, before: datetime) -> None:
        await self._connections.execute(self._sql.forget, before)
