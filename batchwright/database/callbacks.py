"""The table of calls by which backends tell of jobs."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from batchwright.database.callbacks_base import CallbacksTable, Told
from batchwright.database.connection import Connections
from batchwright.database.sql import queries


@dataclass(frozen=True)
class CallbackQueries:
    accept: str
    told: str
    empty: str
    forget: str


class Callbacks(CallbacksTable):
    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._sql = queries(CallbackQueries, "callbacks")

    async def accept(self, id: str, body: bytes | None, size: int, expires_at: datetime) -> bool:
        record = await self._connections.fetchrow(self._sql.accept, id, size, body, expires_at)
        return record is not None

    async def told(self, ids: Sequence[str]) -> list[Told]:
        records = await self._connections.fetch(self._sql.told, list(ids))
        return [Told(record["id"], record["size"], record["body"]) for record in records]

    async def empty(self, ids: Sequence[str]) -> None:
        await self._connections.execute(self._sql.empty, list(ids))

    async def forget(self, before: datetime) -> None:
        await self._connections.execute(self._sql.forget, before)
