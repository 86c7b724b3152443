"""The table of which backend serves what."""

from dataclasses import dataclass
from datetime import datetime

from batchwright.database.base import ModelsTable
from batchwright.database.connection import Connections
from batchwright.database.rows import ServedModel
from batchwright.database.sql import queries


@dataclass(frozen=True)
class ModelQueries:
    forget: str
    note: str
    served: str


class Models(ModelsTable):
    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._sql = queries(ModelQueries, "models")

    async def note(self, backend_url: str, names: list[str], at: datetime) -> None:
        async with self._connections.transaction() as session:
            await session.execute(self._sql.forget, backend_url, names)
            await session.execute(self._sql.note, backend_url, names, at)

    async def served(self, backend_urls: list[str]) -> list[ServedModel]:
        records = await self._connections.fetch(self._sql.served, backend_urls)
        return [ServedModel.model_validate(dict(record.items())) for record in records]
