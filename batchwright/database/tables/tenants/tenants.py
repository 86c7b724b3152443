"""Table of tenants."""

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from batchwright.database.driver import Row
from batchwright.database.pool import ConnectionPool
from batchwright.database.records import TenantRow, parse_row
from batchwright.database.sql import queries


class TenantsTable(Protocol):
    """Tenants that an operator created. A tenant's name never changes, and its row is never deleted."""

    async def create(self, name: str, at: datetime) -> bool:
        """Create a tenant. Return True, or False if it exists already."""
        ...

    async def get(self, name: str) -> TenantRow | None: ...

    async def all(self) -> list[TenantRow]:
        """Return all tenants, sorted by name."""
        ...

    async def disable(self, name: str, at: datetime) -> TenantRow | None:
        """Disable a tenant and return it. Return None if there is no such tenant.

        If the tenant was disabled before, the earlier time stays.
        """
        ...

    async def enable(self, name: str) -> TenantRow | None: ...


@dataclass(frozen=True)
class TenantQueries:
    insert: str
    get: str
    all: str
    disable: str
    enable: str


class PostgresTenants(TenantsTable):
    def __init__(self, connections: ConnectionPool) -> None:
        self._connections = connections
        self._sql = queries(TenantQueries, "tenants")

    async def create(self, name: str, at: datetime) -> bool:
        return await self._connections.fetchrow(self._sql.insert, name, at) is not None

    async def get(self, name: str) -> TenantRow | None:
        return _tenant(await self._connections.fetchrow(self._sql.get, name))

    async def all(self) -> list[TenantRow]:
        records = await self._connections.fetch(self._sql.all)
        return [parse_row(TenantRow, record) for record in records]

    async def disable(self, name: str, at: datetime) -> TenantRow | None:
        return _tenant(await self._connections.fetchrow(self._sql.disable, name, at))

    async def enable(self, name: str) -> TenantRow | None:
        return _tenant(await self._connections.fetchrow(self._sql.enable, name))


def _tenant(record: Row | None) -> TenantRow | None:
    return None if record is None else parse_row(TenantRow, record)
