"""The tables of organizations and of who belongs to them."""

from dataclasses import dataclass
from datetime import datetime

from batchwright.database.connection import Connections
from batchwright.database.sql import queries
from batchwright.database.tenants_base import OrganizationsTable


@dataclass(frozen=True)
class OrganizationQueries:
    create: str
    limit: str
    delete: str
    add: str
    remove: str


class Organizations(OrganizationsTable):
    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._sql = queries(OrganizationQueries, "organizations")

    async def create(self, name: str, tokens_per_day: int | None, at: datetime) -> bool:
        return await self._found(self._sql.create, name, tokens_per_day, at)

    async def limit(self, name: str, tokens_per_day: int | None) -> bool:
        return await self._found(self._sql.limit, name, tokens_per_day)

    async def delete(self, name: str) -> bool:
        return await self._found(self._sql.delete, name)

    async def add(self, name: str, tenant: str) -> str | None:
        record = await self._connections.fetchrow(self._sql.add, name, tenant)
        return None if record is None else record["organization"]

    async def remove(self, name: str, tenant: str) -> bool:
        return await self._found(self._sql.remove, name, tenant)

    async def _found(self, sql: str, *values: object) -> bool:
        return await self._connections.fetchrow(sql, *values) is not None
