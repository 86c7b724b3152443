"""The table of tenants."""

from dataclasses import dataclass
from datetime import datetime

from batchwright.database.connection import Connections
from batchwright.database.driver import Row
from batchwright.database.sql import queries
from batchwright.database.tenant_rows import TenantRow
from batchwright.database.tenants_base import TenantsTable


@dataclass(frozen=True)
class TenantQueries:
    insert: str
    get: str
    all: str
    disable: str
    enable: str


class Tenants(TenantsTable):
    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._sql = queries(TenantQueries, "tenants")

    async def create(self, name: str, at: datetime) -> bool:
        return await self._connections.fetchrow(self._sql.insert, name, at) is not None

    async def get(self, name: str) -> TenantRow | None:
        return _tenant(await self._connections.fetchrow(self._sql.get, name))

    async def all(self) -> list[TenantRow]:
        records = await self._connections.fetch(self._sql.all)
        return [TenantRow.model_validate(dict(record.items())) for record in records]

    async def disable(self, name: str, at: datetime) -> TenantRow | None:
        return _tenant(await self._connections.fetchrow(self._sql.disable, name, at))

    async def enable(self, name: str) -> TenantRow | None:
        return _tenant(await self._connections.fetchrow(self._sql.enable, name))


def _tenant(record: Row | None) -> TenantRow | None:
    return None if record is None else TenantRow.model_validate(dict(record.items()))
