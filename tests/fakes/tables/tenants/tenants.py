"""Fake tables of tenants and API keys, in memory. They pass the tests of the PostgreSQL tables."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from batchwright.contracts.terms import GroupKind
from batchwright.database.errors import InOtherOrganization, UnknownApiKey, UnknownBudgetGroup, UnknownTenant
from batchwright.database.records import ApiKeyRow, BudgetGroupRow, StoredApiKey, TenantRow
from batchwright.database.tables.tenants.api_keys import ApiKeysTable
from batchwright.database.tables.tenants.budget_groups import BudgetGroupsTable, GroupBudget
from batchwright.database.tables.tenants.sessions import SessionsTable
from batchwright.database.tables.tenants.tenants import TenantsTable
from batchwright.rules.tenants.api_keys import SecretHash
from batchwright.rules.tenants.quotas import BudgetGroup, DailyAmounts
from tests.fakes.tables.rows import Rows, used_today


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


class MemoryBudgetGroups(BudgetGroupsTable):
    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    async def create(
        self, group: BudgetGroup, tokens_per_day: int | None, at: datetime, *, cost_per_day: str | None = None
    ) -> bool:
        if group.tenant and group.tenant not in self._rows.enter().tenants:
            raise UnknownTenant(group.tenant)
        budget = {"tokens_per_day": tokens_per_day, "cost_per_day": cost_per_day}
        fresh = BudgetGroupRow.model_validate({**group._asdict(), **budget, "created_at": at, "members": []})
        return self._rows.enter().budget_groups.setdefault(group, fresh) is fresh

    async def all(self, kind: GroupKind | None = None, tenant: str | None = None) -> list[BudgetGroupRow]:
        rows = [row for _, row in sorted(self._rows.enter().budget_groups.items())]
        return [row for row in rows if kind in (None, row.kind) and tenant in (None, row.tenant)]

    async def limited(self) -> list[BudgetGroupRow]:
        return [row for row in await self.all() if any(row.budget)]

    async def budgets_of(self, tenant: str, key_id: str = "") -> list[GroupBudget]:
        return [
            GroupBudget(row.group, row.budget, self._used(row))
            for row in await self.all()
            if (tenant if row.kind is GroupKind.ORGANIZATION else key_id) in row.members
            and row.tenant in ("", tenant)
        ]

    def _used(self, row: BudgetGroupRow) -> DailyAmounts:
        used = DailyAmounts()
        for member in row.members:
            of = (member,) if row.kind is GroupKind.ORGANIZATION else (row.tenant, member)
            used = used.plus(used_today(self._rows, *of))
        return used

    async def limit(
        self, group: BudgetGroup, *, tokens_per_day: int | None = None, cost_per_day: str | None = None
    ) -> None:
        if tokens_per_day is not None:
            self._put(group, tokens_per_day=tokens_per_day or None)
        if cost_per_day is not None:
            self._put(group, cost_per_day=None if cost_per_day == "0" else cost_per_day)
        self._get(group)

    async def add(self, group: BudgetGroup, members: Sequence[str], *, only: bool = False) -> None:
        row = self._get(group)
        others = [other for other in self._rows.budget_groups.values() if other.kind is group.kind]
        for member in members:
            if group.kind is GroupKind.ORGANIZATION:
                for other in others:
                    if other.name != group.name and member in other.members:
                        raise InOtherOrganization(member, other.name)
            elif member not in self._keys_of(group.tenant):
                raise UnknownApiKey(group.tenant, member)
        for other in others:
            self._put(other.group, members=[member for member in other.members if member not in members])
        self._put(group, members=sorted({*members, *([] if only else row.members)}))

    async def remove(self, group: BudgetGroup, members: Sequence[str]) -> set[str]:
        row = self._get(group)
        self._put(group, members=[member for member in row.members if member not in members])
        return {*row.members}.intersection(members)

    async def delete(self, group: BudgetGroup) -> None:
        self._get(group)
        del self._rows.budget_groups[group]

    def _keys_of(self, tenant: str) -> set[str]:
        return {found.key.id for found in self._rows.api_keys.values() if found.key.tenant == tenant}

    def _get(self, group: BudgetGroup) -> BudgetGroupRow:
        row = self._rows.enter().budget_groups.get(group)
        if row is None:
            raise UnknownBudgetGroup(group)
        return row

    def _put(self, group: BudgetGroup, **changes: object) -> None:
        self._rows.budget_groups[group] = self._get(group).model_copy(update=changes)


class MemoryApiKeys(ApiKeysTable):
    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    async def insert(
        self, key: ApiKeyRow, secret_hash: SecretHash, groups: Sequence[BudgetGroup] = ()
    ) -> None:
        if key.tenant not in self._rows.enter().tenants:
            raise UnknownTenant(key.tenant)
        for group in groups:
            if group not in self._rows.budget_groups:
                raise UnknownBudgetGroup(group)
        if key.prefix not in self._rows.api_keys:
            self._rows.api_keys[key.prefix] = StoredApiKey(key=key, secret_hash=secret_hash)
            for group in groups:
                await MemoryBudgetGroups(self._rows).add(group, [key.id])

    async def find(self, prefix: str) -> StoredApiKey | None:
        self._rows.key_lookups += 1
        found = self._rows.enter().api_keys.get(prefix)
        if found is None:
            return None
        disabled_at = self._rows.tenants[found.key.tenant].disabled_at
        return found.model_copy(update={"tenant_disabled_at": disabled_at})

    async def all(self, tenant: str | None = None) -> list[ApiKeyRow]:
        keys = [found.key for found in self._rows.enter().api_keys.values()]
        chosen = [key for key in keys if tenant in (None, key.tenant)]
        return sorted(chosen, key=lambda key: (key.tenant, key.created_at, key.id))

    async def revoke(self, key: str, at: datetime) -> ApiKeyRow | None:
        for found in self._rows.enter().api_keys.values():
            if key in (found.key.id, found.key.prefix):
                return self._put(found, revoked_at=found.key.revoked_at or at)
        return None

    async def limit(
        self,
        key: str,
        *,
        tokens_per_day: int | None = None,
        cost_per_day: str | None = None,
        max_in_flight: int | None = None,
    ) -> ApiKeyRow | None:
        limits = {
            "tokens_per_day": tokens_per_day,
            "cost_per_day": cost_per_day,
            "max_in_flight": max_in_flight,
        }
        changes = {
            name: None if limit in (0, "0") else limit for name, limit in limits.items() if limit is not None
        }
        for found in self._rows.enter().api_keys.values():
            if key in (found.key.id, found.key.prefix):
                return self._put(found, **changes)
        return None

    async def record_uses(self, uses: Mapping[str, datetime]) -> None:
        for found in list(self._rows.enter().api_keys.values()):
            at, last = uses.get(found.key.id), found.key.last_used_at
            if at is not None and (last is None or last <= at - timedelta(minutes=1)):
                self._put(found, last_used_at=at)

    def _put(self, found: StoredApiKey, **changes: object) -> ApiKeyRow:
        key = found.key.model_copy(update=changes)
        self._rows.api_keys[key.prefix] = found.model_copy(update={"key": key})
        return key


class MemorySessions(SessionsTable):
    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    async def insert(self, token_hash: bytes, key_id: str, at: datetime, expires_at: datetime) -> None:
        sessions = self._rows.enter().sessions
        for old, (_, until) in list(sessions.items()):
            if until <= at:
                del sessions[old]
        sessions.setdefault(token_hash, (key_id, expires_at))

    async def find(self, token_hash: bytes, at: datetime) -> StoredApiKey | None:
        key_id, until = self._rows.enter().sessions.get(token_hash, ("", at))
        if until <= at:
            return None
        keys = self._rows.api_keys.values()
        return await MemoryApiKeys(self._rows).find(
            next(each.key.prefix for each in keys if each.key.id == key_id)
        )

    async def delete(self, token_hash: bytes) -> None:
        self._rows.enter().sessions.pop(token_hash, None)
