"""Tenants and their keys in memory, held to the same suite as PostgreSQL's."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from batchwright.database.errors import UnknownTenant, UnknownUser
from batchwright.database.tenant_rows import FoundKey, KeyRow, OrganizationRow, TenantRow, UserRow
from batchwright.database.tenants_base import ApiKeysTable, OrganizationsTable, TenantsTable, UsersTable
from batchwright.rules.api_keys import Kept
from tests.fakes.rows import Rows, with_keys


class MemoryTenants(TenantsTable):
    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    async def create(self, name: str, at: datetime) -> bool:
        tenants = self._rows.enter().tenants
        fresh = TenantRow(name=name, created_at=at)
        return tenants.setdefault(name, fresh) is fresh

    async def get(self, name: str) -> TenantRow | None:
        return self._rows.enter().tenants.get(name)

    async def all(self) -> list[TenantRow]:
        return [row for _, row in sorted(self._rows.enter().tenants.items())]

    async def disable(self, name: str, at: datetime) -> TenantRow | None:
        row = await self.get(name)
        return row and self._put(row, row.disabled_at or at)

    async def enable(self, name: str) -> TenantRow | None:
        row = await self.get(name)
        return row and self._put(row, None)

    def _put(self, row: TenantRow, disabled_at: datetime | None) -> TenantRow:
        changed = row.model_copy(update={"disabled_at": disabled_at})
        self._rows.tenants[row.name] = changed
        return changed


class MemoryOrganizations(OrganizationsTable):
    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    async def create(self, name: str, tokens_per_day: int | None, at: datetime) -> bool:
        fresh = OrganizationRow(name=name, created_at=at, tokens_per_day=tokens_per_day, tenants=[])
        return self._rows.enter().organizations.setdefault(name, fresh) is fresh

    async def limit(self, name: str, tokens_per_day: int | None) -> bool:
        return self._put(name, tokens_per_day=tokens_per_day)

    async def delete(self, name: str) -> bool:
        return self._rows.enter().organizations.pop(name, None) is not None

    async def add(self, name: str, tenant: str) -> str | None:
        found = self._rows.enter().organizations
        there = next((row.name for row in found.values() if tenant in row.tenants), None)
        if name not in found or there is not None:
            return there if name in found else None
        self._put(name, tenants=sorted([*found[name].tenants, tenant]))
        return name

    async def remove(self, name: str, tenant: str) -> bool:
        row = self._rows.enter().organizations.get(name)
        if row is None or tenant not in row.tenants:
            return False
        return self._put(name, tenants=[other for other in row.tenants if other != tenant])

    def _put(self, name: str, **changes: object) -> bool:
        found = self._rows.enter().organizations
        if name in found:
            found[name] = found[name].model_copy(update=changes)
        return name in found


class MemoryUsers(UsersTable):
    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    async def create(self, tenant: str, name: str, tokens_per_day: int | None, at: datetime) -> bool:
        if tenant not in self._rows.enter().tenants:
            raise UnknownTenant(tenant)
        fresh = UserRow(tenant=tenant, name=name, created_at=at, tokens_per_day=tokens_per_day, keys=[])
        return self._rows.users.setdefault((tenant, name), fresh) is fresh

    async def all(self, tenant: str | None = None) -> list[UserRow]:
        return [row for row in with_keys(self._rows.enter()) if tenant in (None, row.tenant)]

    async def limit(self, tenant: str, name: str, tokens_per_day: int | None) -> bool:
        row = self._rows.enter().users.get((tenant, name))
        if row is None:
            return False
        self._rows.users[tenant, name] = row.model_copy(update={"tokens_per_day": tokens_per_day})
        return True

    async def own(self, tenant: str, name: str, keys: Sequence[str]) -> bool:
        if (tenant, name) not in self._rows.enter().users:
            return False
        for found in list(self._rows.api_keys.values()):
            key = found.key
            if key.tenant == tenant and key.id in keys:
                put_key(self._rows, found, user_name=name)
            elif (key.tenant, key.user_name) == (tenant, name):
                put_key(self._rows, found, user_name=None)
        return True

    async def delete(self, tenant: str, name: str) -> bool:
        await self.own(tenant, name, [])
        return self._rows.users.pop((tenant, name), None) is not None


class MemoryApiKeys(ApiKeysTable):
    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    async def insert(self, key: KeyRow, kept: Kept) -> None:
        if key.tenant not in self._rows.enter().tenants:
            raise UnknownTenant(key.tenant)
        self._check_user(key, key.user_name)
        self._rows.api_keys.setdefault(key.prefix, FoundKey(key=key, kept=kept))

    async def find(self, prefix: str) -> FoundKey | None:
        self._rows.key_lookups += 1
        found = self._rows.enter().api_keys.get(prefix)
        if found is None:
            return None
        disabled_at = self._rows.tenants[found.key.tenant].disabled_at
        return found.model_copy(update={"tenant_disabled_at": disabled_at})

    async def all(self, tenant: str | None = None) -> list[KeyRow]:
        keys = [found.key for found in self._rows.enter().api_keys.values()]
        chosen = [key for key in keys if tenant in (None, key.tenant)]
        return sorted(chosen, key=lambda key: (key.tenant, key.created_at, key.id))

    async def revoke(self, key: str, at: datetime) -> KeyRow | None:
        for found in self._rows.enter().api_keys.values():
            if key in (found.key.id, found.key.prefix):
                return self._put(found, revoked_at=found.key.revoked_at or at)
        return None

    async def limit(self, key: str, tokens_per_day: int | None) -> KeyRow | None:
        for found in self._rows.enter().api_keys.values():
            if key in (found.key.id, found.key.prefix):
                return self._put(found, tokens_per_day=tokens_per_day)
        return None

    async def give(self, key: str, user: str | None) -> KeyRow | None:
        for found in self._rows.enter().api_keys.values():
            if key in (found.key.id, found.key.prefix):
                self._check_user(found.key, user)
                return self._put(found, user_name=user)
        return None

    def _check_user(self, key: KeyRow, user: str | None) -> None:
        if user is not None and (key.tenant, user) not in self._rows.users:
            raise UnknownUser(key.tenant, user)

    async def note_used(self, uses: Mapping[str, datetime]) -> None:
        for found in list(self._rows.enter().api_keys.values()):
            at, last = uses.get(found.key.id), found.key.last_used_at
            if at is not None and (last is None or last <= at - timedelta(minutes=1)):
                self._put(found, last_used_at=at)

    def _put(self, found: FoundKey, **changes: object) -> KeyRow:
        return put_key(self._rows, found, **changes)


def put_key(rows: Rows, found: FoundKey, **changes: object) -> KeyRow:
    key = found.key.model_copy(update=changes)
    rows.api_keys[key.prefix] = found.model_copy(update={"key": key})
    return key


class TenantsAndKeys:
    """Their place in a database."""

    rows: Rows

    @property
    def tenants(self) -> MemoryTenants:
        return MemoryTenants(self.rows)

    @property
    def organizations(self) -> MemoryOrganizations:
        return MemoryOrganizations(self.rows)

    @property
    def users(self) -> MemoryUsers:
        return MemoryUsers(self.rows)

    @property
    def api_keys(self) -> MemoryApiKeys:
        return MemoryApiKeys(self.rows)
