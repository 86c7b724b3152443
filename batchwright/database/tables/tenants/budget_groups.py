"""Tables of budget groups: organizations with tenants as members, and teams and users with API keys."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, Protocol

from batchwright.contracts.terms import GroupKind
from batchwright.database.driver import Session
from batchwright.database.errors import InOtherOrganization, UnknownApiKey, UnknownBudgetGroup, UnknownTenant
from batchwright.database.pool import ConnectionPool
from batchwright.database.records import BudgetGroupRow, parse_row
from batchwright.database.sql import queries
from batchwright.database.tables.tenants.daily_usage import parse_budget, parse_used
from batchwright.rules.tenants.quotas import BudgetGroup, DailyAmounts


class GroupBudget(NamedTuple):
    """Daily budget of a group (an organization, a team or a user), and what its members have used today."""

    group: BudgetGroup
    limit: DailyAmounts
    used: DailyAmounts


class BudgetGroupsTable(Protocol):
    """Budget groups: organizations, teams and users. The members of a group share its daily budgets.

    The members of an organization are tenants, and those of a team or a user are API keys. A tenant belongs
    to at most one organization. An API key belongs to at most one team and one user.
    """

    async def create(
        self, group: BudgetGroup, tokens_per_day: int | None, at: datetime, *, cost_per_day: str | None = None
    ) -> bool:
        """Create a group (an organization, a team or a user) and return True. Return False if it exists
        already.

        If a budget is None, the group has no such budget. `cost_per_day` is decimal text in the currency of
        the models' prices. Raises UnknownTenant if the group belongs to a tenant that does not exist.
        """
        ...

    async def all(self, kind: GroupKind | None = None, tenant: str | None = None) -> list[BudgetGroupRow]:
        """Return groups (organizations, teams and users) with their members, sorted by kind, tenant and name.

        The members include revoked API keys.

        Args:
            kind: return only groups of this kind; None for all kinds.
            tenant: return only teams and users of this tenant; None for all groups.
        """
        ...

    async def limited(self) -> list[BudgetGroupRow]:
        """Return the groups (organizations, teams and users) that have a daily budget, with their members."""
        ...

    async def budgets_of(self, tenant: str, key_id: str = "") -> list[GroupBudget]:
        """Return the daily budgets of all groups to which the tenant or the API key of a batch belongs.

        The result has at most one organization (of the tenant), one team and one user (both of the API key).

        Args:
            tenant: tenant of the batch.
            key_id: id of the API key that created the batch; empty if it was created without a key.
        """
        ...

    async def limit(
        self, group: BudgetGroup, *, tokens_per_day: int | None = None, cost_per_day: str | None = None
    ) -> None:
        """Change the daily budgets of a group (an organization, a team or a user).

        For each budget, None means no change, and 0 removes the budget. `cost_per_day` is decimal text in the
        currency of the models' prices. Raises UnknownBudgetGroup if there is no such group.
        """
        ...

    async def add(self, group: BudgetGroup, members: Sequence[str], *, only: bool = False) -> None:
        """Add members to a group, which is an organization, a team or a user.

        - If the group is an organization, its members are tenants. A tenant that belongs to another
          organization must be removed from that organization first.
        - If the group is a team, its members are API keys of its tenant. A key that belongs to another team
          is removed from that team.
        - If the group is a user, its members are also API keys of its tenant. A key that belongs to another
          user is removed from that user.

        If an error is raised, nothing changes.

        Args:
            members: names of tenants, or ids of API keys.
            only: True to remove all earlier members that are not in `members`.

        Raises:
            UnknownBudgetGroup: there is no such group.
            UnknownApiKey: a member is not an API key of the group's tenant.
            InOtherOrganization: a member belongs to another organization.
        """
        ...

    async def remove(self, group: BudgetGroup, members: Sequence[str]) -> set[str]:
        """Remove members (tenants or API keys) from a group. Return the names or ids that were removed.

        If a name or id in `members` is not a member, it is ignored. Raises UnknownBudgetGroup if there is no
        such group.
        """
        ...

    async def delete(self, group: BudgetGroup) -> None:
        """Delete a group (an organization, a team or a user). The tenants or API keys in it are not deleted.

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

    async def create(
        self, group: BudgetGroup, tokens_per_day: int | None, at: datetime, *, cost_per_day: str | None = None
    ) -> bool:
        async with self._connections.session() as session:
            if group.tenant and await session.fetchrow(self._sql.tenant_exists, group.tenant) is None:
                raise UnknownTenant(group.tenant)
            row = (*group, tokens_per_day, at, cost_per_day)
            return await session.fetchrow(self._sql.create, *row) is not None

    async def all(self, kind: GroupKind | None = None, tenant: str | None = None) -> list[BudgetGroupRow]:
        records = await self._connections.fetch(self._sql.all, kind, tenant)
        return [parse_row(BudgetGroupRow, record) for record in records]

    async def limited(self) -> list[BudgetGroupRow]:
        records = await self._connections.fetch(self._sql.limited)
        return [parse_row(BudgetGroupRow, record) for record in records]

    async def budgets_of(self, tenant: str, key_id: str = "") -> list[GroupBudget]:
        records = await self._connections.fetch(self._sql.budgets_of, tenant, key_id)
        return [
            GroupBudget(
                BudgetGroup(GroupKind(record["kind"]), record["tenant"], record["name"]),
                parse_budget(record),
                parse_used(record),
            )
            for record in records
        ]

    async def limit(
        self, group: BudgetGroup, *, tokens_per_day: int | None = None, cost_per_day: str | None = None
    ) -> None:
        if await self._connections.fetchrow(self._sql.limit, *group, tokens_per_day, cost_per_day) is None:
            raise UnknownBudgetGroup(group)

    async def add(self, group: BudgetGroup, members: Sequence[str], *, only: bool = False) -> None:
        async with self._locked(group) as session:
            if only:
                await session.execute(self._sql.remove_others, *group, list(members))
            await self._add(session, group, members)

    async def add_new_key(self, session: Session, group: BudgetGroup, key_id: str) -> None:
        """Add a new API key to a team or a user, in the transaction in which the caller inserted the key.

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
        """Lock the members of `group` until the transaction ends.

        The members of all other groups of the same kind and tenant are locked, too. Raises UnknownBudgetGroup
        if `group` does not exist.
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
