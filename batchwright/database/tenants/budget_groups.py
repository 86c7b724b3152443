"""Tables of budget groups: organizations with tenants as members, and teams and users with API keys."""

from collections import Counter
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import date, datetime
from typing import NamedTuple, Protocol

from batchwright.contracts.openai import GroupKind
from batchwright.database.driver import Session
from batchwright.database.errors import InOtherOrganization, UnknownApiKey, UnknownBudgetGroup, UnknownTenant
from batchwright.database.pool import ConnectionPool
from batchwright.database.records import BudgetGroupRow
from batchwright.database.sql import queries
from batchwright.database.tenants.quotas import QuotasTable, tokens_by_key
from batchwright.rules.quotas import BudgetGroup


class GroupBudget(NamedTuple):
    """Daily token budget of a group, and the number of tokens that its members have used today.

    `limit` is None if the group has no budget.
    """

    group: BudgetGroup
    limit: int | None
    used: int


class BudgetGroupsTable(Protocol):
    """Budget groups. The members of a group share a daily token budget.

    A tenant belongs to at most one organization. An API key belongs to at most one team and one user.
    """

    async def create(self, group: BudgetGroup, tokens_per_day: int | None, at: datetime) -> bool:
        """Create a group and return True. Return False if the group exists already.

        `tokens_per_day` is None if the group has no budget. Raises UnknownTenant if the group belongs to a
        tenant that does not exist.
        """
        ...

    async def all(self, kind: GroupKind | None = None, tenant: str | None = None) -> list[BudgetGroupRow]:
        """Return groups with their members, sorted by kind, then tenant, then name.

        The members include revoked API keys.

        Args:
            kind: return only groups of this kind; None for all kinds.
            tenant: return only teams and users of this tenant; None for all groups.
        """
        ...

    async def limited(self) -> list[BudgetGroupRow]:
        """Return the groups that have a budget, with their members."""
        ...

    async def budgets_of(self, tenant: str, key_id: str = "") -> list[GroupBudget]:
        """Return the budgets against which the tokens of a batch count, at most one for each kind of group.

        Args:
            tenant: tenant of the batch.
            key_id: id of the API key that created the batch; empty if it was created without a key.
        """
        ...

    async def limit(self, group: BudgetGroup, tokens_per_day: int | None) -> None:
        """Set the daily token budget of a group; None removes it.

        Raises UnknownBudgetGroup if there is no such group.
        """
        ...

    async def add(self, group: BudgetGroup, members: Sequence[str], *, only: bool = False) -> None:
        """Add members to a group.

        An organization has tenants as members; a team or user has API keys of its tenant. If an API key is a
        member of another team or user, it moves to this one. A tenant does not move: remove it from its
        earlier organization first. If an error is raised, nothing changes.

        Args:
            members: names of tenants, or ids of API keys.
            only: True to remove all other members.

        Raises:
            UnknownBudgetGroup: there is no such group.
            UnknownApiKey: a member is not an API key of the group's tenant.
            InOtherOrganization: a member belongs to another organization.
        """
        ...

    async def remove(self, group: BudgetGroup, members: Sequence[str]) -> set[str]:
        """Remove members from a group. Return the names or ids that were removed.

        If a name or id in `members` is not a member, it is ignored. Raises UnknownBudgetGroup if there is no
        such group.
        """
        ...

    async def delete(self, group: BudgetGroup) -> None:
        """Delete a group. The tenants or API keys that were its members are not deleted.

        Raises UnknownBudgetGroup if there is no such group.
        """
        ...


@dataclass(frozen=True)
class BudgetGroupQueries:
    tenant_exists: str
    create: str
    all: str
    limited: str
    budgets_of: str
    limit: str
    lock: str
    find: str
    remove_others: str
    add_tenants: str
    add_keys: str
    remove: str
    delete: str


class PostgresBudgetGroups(BudgetGroupsTable):
    def __init__(self, connections: ConnectionPool) -> None:
        self._connections = connections
        self._sql = queries(BudgetGroupQueries, "budget_groups")

    async def create(self, group: BudgetGroup, tokens_per_day: int | None, at: datetime) -> bool:
        async with self._connections.session() as session:
            if group.tenant and await session.fetchrow(self._sql.tenant_exists, group.tenant) is None:
                raise UnknownTenant(group.tenant)
            return await session.fetchrow(self._sql.create, *group, tokens_per_day, at) is not None

    async def all(self, kind: GroupKind | None = None, tenant: str | None = None) -> list[BudgetGroupRow]:
        records = await self._connections.fetch(self._sql.all, kind, tenant)
        return [BudgetGroupRow.model_validate(dict(record.items())) for record in records]

    async def limited(self) -> list[BudgetGroupRow]:
        records = await self._connections.fetch(self._sql.limited)
        return [BudgetGroupRow.model_validate(dict(record.items())) for record in records]

    async def budgets_of(self, tenant: str, key_id: str = "") -> list[GroupBudget]:
        records = await self._connections.fetch(self._sql.budgets_of, tenant, key_id)
        return [
            GroupBudget(BudgetGroup(GroupKind(kind), of, name), limit, used)
            for kind, of, name, limit, used in records
        ]

    async def limit(self, group: BudgetGroup, tokens_per_day: int | None) -> None:
        if await self._connections.fetchrow(self._sql.limit, *group, tokens_per_day) is None:
            raise UnknownBudgetGroup(group)

    async def add(self, group: BudgetGroup, members: Sequence[str], *, only: bool = False) -> None:
        async with self._locked(group) as session:
            if only:
                await session.execute(self._sql.remove_others, *group, list(members))
            await self._add(session, group, members)

    async def add_new_key(self, session: Session, group: BudgetGroup, key_id: str) -> None:
        """Add a new API key to a group, in the transaction in which the caller inserted the key.

        Raises UnknownBudgetGroup if there is no such group.
        """
        await self._lock(session, group)
        await self._add(session, group, [key_id])

    async def remove(self, group: BudgetGroup, members: Sequence[str]) -> set[str]:
        async with self._locked(group) as session:
            return {row["member"] for row in await session.fetch(self._sql.remove, *group, list(members))}

    async def delete(self, group: BudgetGroup) -> None:
        async with self._locked(group) as session:
            await session.execute(self._sql.delete, *group)

    @asynccontextmanager
    async def _locked(self, group: BudgetGroup) -> AsyncGenerator[Session]:
        async with self._connections.transaction() as session:
            await self._lock(session, group)
            yield session

    async def _lock(self, session: Session, group: BudgetGroup) -> None:
        """Lock the members of all groups with the kind and tenant of `group` until the transaction ends.

        Raises UnknownBudgetGroup if there is no such group.
        """
        await session.execute(self._sql.lock, group.kind, group.tenant)
        if await session.fetchrow(self._sql.find, *group) is None:
            raise UnknownBudgetGroup(group)

    async def _add(self, session: Session, group: BudgetGroup, members: Sequence[str]) -> None:
        is_organization = group.kind is GroupKind.ORGANIZATION
        add = self._sql.add_tenants if is_organization else self._sql.add_keys
        groups = {row["member"]: row["name"] for row in await session.fetch(add, *group, list(members))}
        for member in members:
            if member not in groups:
                raise UnknownApiKey(group.tenant, member)
            if groups[member] != group.name:
                raise InOtherOrganization(member, groups[member])


async def tokens_by_group(
    table: QuotasTable, groups: Collection[BudgetGroupRow], day: date
) -> list[tuple[BudgetGroupRow, int]]:
    """Return each group with the number of tokens that its present members used on `day`.

    Raises DatabaseUnavailable if the database does not answer.
    """
    by_key, by_tenant = await tokens_by_key(table, day), Counter[str]()
    for (tenant, _), tokens in by_key.items():
        by_tenant[tenant] += tokens

    def used(row: BudgetGroupRow) -> int:
        if row.kind is GroupKind.ORGANIZATION:
            return sum(by_tenant[tenant] for tenant in row.members)
        return sum(by_key[row.tenant, key] for key in row.members)

    return [(row, used(row)) for row in groups]
