"""The table of users, and which keys are theirs."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from batchwright.database.connection import Connections
from batchwright.database.driver import ReferenceMissing
from batchwright.database.errors import UnknownTenant
from batchwright.database.sql import queries
from batchwright.database.tenant_rows import UserRow
from batchwright.database.tenants_base import UsersTable


@dataclass(frozen=True)
class UserQueries:
    create: str
    limit: str
    all: str
    lock: str
    hold: str
    lock_keys: str
    free_keys: str
    take_keys: str
    delete: str


class Users(UsersTable):
    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._sql = queries(UserQueries, "users")

    async def create(self, tenant: str, name: str, tokens_per_day: int | None, at: datetime) -> bool:
        try:
            made = await self._connections.fetchrow(self._sql.create, tenant, name, tokens_per_day, at)
        except ReferenceMissing:
            raise UnknownTenant(tenant) from None
        return made is not None

    async def all(self, tenant: str | None = None) -> list[UserRow]:
        records = await self._connections.fetch(self._sql.all, tenant)
        return [UserRow.model_validate(dict(record.items())) for record in records]

    async def limit(self, tenant: str, name: str, tokens_per_day: int | None) -> bool:
        return await self._connections.fetchrow(self._sql.limit, tenant, name, tokens_per_day) is not None

    async def own(self, tenant: str, name: str, keys: Sequence[str]) -> bool:
        async with self._connections.transaction() as session:
            if await session.fetchrow(self._sql.hold, tenant, name) is None:
                return False
            for sql in (self._sql.lock_keys, self._sql.free_keys, self._sql.take_keys):
                await session.execute(sql, tenant, name, list(keys))
            return True

    async def delete(self, tenant: str, name: str) -> bool:
        async with self._connections.transaction() as session:
            if await session.fetchrow(self._sql.lock, tenant, name) is None:
                return False
            no_keys = list[str]()
            await session.execute(self._sql.free_keys, tenant, name, no_keys)
            await session.execute(self._sql.delete, tenant, name)
            return True
