"""Table of the models that each backend lists."""

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from batchwright.contracts.model_registry.stored_models import ServedModel
from batchwright.database.pool import ConnectionPool
from batchwright.database.records import parse_row
from batchwright.database.sql import queries


class ModelsTable(Protocol):
    """Models that each backend offers in its response to `/v1/models`. They belong to no tenant."""

    async def replace_models(self, backend_url: str, names: list[str], at: datetime) -> None:
        """Replace the stored models of a backend by `names`, which the backend offered at the time `at`."""
        ...

    async def served(self, backend_urls: list[str]) -> list[ServedModel]:
        """Return the models that these backends offer, sorted by model name and then by backend URL."""
        ...


@dataclass(frozen=True)
class ModelQueries:
    delete_unlisted: str
    replace_models: str
    served: str


class PostgresModels(ModelsTable):
    def __init__(self, connections: ConnectionPool) -> None:
        self._connections = connections
        self._sql = queries(ModelQueries, "models")

    async def replace_models(self, backend_url: str, names: list[str], at: datetime) -> None:
        async with self._connections.transaction() as session:
            await session.execute(self._sql.delete_unlisted, backend_url, names)
            await session.execute(self._sql.replace_models, backend_url, names, at)

    async def served(self, backend_urls: list[str]) -> list[ServedModel]:
        records = await self._connections.fetch(self._sql.served, backend_urls)
        return [parse_row(ServedModel, record) for record in records]
