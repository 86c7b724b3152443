"""Daily token budgets of tenants, API keys and budget groups.

A process knows the usage of its own lines at once, and the usage of other processes from its last refresh.
Therefore the usage may exceed a budget a little: lines are in flight when the budget runs out, and other
workers may send more lines until their next refresh.
"""

import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from secrets import token_hex

from batchwright.contracts.openai import GroupKind
from batchwright.database.records import BudgetGroupRow
from batchwright.database.tenants.budget_groups import BudgetGroupsTable
from batchwright.database.tenants.quota_records import DailyTokens, TenantQuotas
from batchwright.database.tenants.quotas import QuotasTable
from batchwright.rules.quotas import BudgetGroup


class LimitedGroups:
    """The budget groups that have a token budget, with their budgets.

    A budget group is an organization with tenants as members, or a group of one tenant's API keys.
    """

    def __init__(self, rows: Iterable[BudgetGroupRow] = ()) -> None:
        self.limits: dict[BudgetGroup, int] = {}
        self._of_tenants: dict[str, BudgetGroup] = {}
        self._of_keys: dict[tuple[str, str], list[BudgetGroup]] = {}
        for row in rows:
            if not row.tokens_per_day:
                continue
            self.limits[row.group] = row.tokens_per_day
            if row.kind is GroupKind.ORGANIZATION:
                self._of_tenants.update(dict.fromkeys(row.members, row.group))
            else:
                for key in row.members:
                    self._of_keys.setdefault((row.tenant, key), []).append(row.group)

    def __bool__(self) -> bool:
        return bool(self._of_tenants or self._of_keys)

    def of(self, tenant: str, key_id: str) -> Iterator[BudgetGroup]:
        """Yield the groups whose budgets apply to a batch.

        Args:
            tenant: tenant of the batch.
            key_id: id of the API key that created the batch; empty if the batch was created without a key.
        """
        yield from self._of_keys.get((tenant, key_id), ())
        if (organization := self._of_tenants.get(tenant)) is not None:
            yield organization


_NEVER = date.min
_DAY_SECONDS = 86_400


@dataclass
class _UsageTotals:
    """Tokens used on one day, by tenant, API key and budget group."""

    by_tenant: Counter[str] = field(default_factory=Counter[str])
    by_key: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    by_group: Counter[BudgetGroup] = field(default_factory=Counter[BudgetGroup])
    is_published: bool = True

    def add(self, tenant: str, key_id: str, tokens: int, groups: LimitedGroups) -> None:
        self.by_tenant[tenant] += tokens
        self.by_key[tenant, key_id] += tokens
        for group in groups.of(tenant, key_id):
            self.by_group[group] += tokens

    def regroup(self, groups: LimitedGroups) -> None:
        """Compute the usage of budget groups again, from the usage of their present members."""
        self.by_group.clear()
        for (tenant, key_id), tokens in self.by_key.items():
            for group in groups.of(tenant, key_id):
                self.by_group[group] += tokens

    def rows(self) -> list[DailyTokens]:
        return [DailyTokens(tenant, key_id, tokens) for (tenant, key_id), tokens in self.by_key.items()]


class TokenBudgets:
    """All daily token budgets, and how much of each is used, as far as this process knows.

    Args:
        default: tokens per day for tenants without a budget of their own; 0 means no limit.
        worker: name under which this process publishes its usage; by default, a new unique name.
    """

    def __init__(
        self,
        table: QuotasTable,
        groups: BudgetGroupsTable,
        default: int,
        *,
        worker: str = "",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._table, self._groups, self._default, self._clock = table, groups, default, clock
        self.has_limits = default > 0  # True if any budget exists
        self._worker = worker or f"{socket.gethostname()}:{os.getpid()}:{token_hex(4)}"
        self._days, self._date = -1, date.min  # today as days since 1970, and as a date
        self._own: dict[date, _UsageTotals] = {}
        self._others, self._others_on = _UsageTotals(), _NEVER
        self._tenants: Mapping[str, int] = {}
        self._keys: Mapping[str, int] = {}
        self._limited = LimitedGroups()
        self._cleared_on = _NEVER

    def exceeded(self, tenant: str, key_id: str) -> str:
        """Return a message for the client if a token budget of the batch is used up; empty if no budget is.

        Args:
            key_id: id of the API key that created the batch; empty if the batch was created without a key.
        """
        limit = self._tenants.get(tenant, self._default)
        if limit and self._spent(lambda of: of.by_tenant[tenant]) >= limit:
            return f"Your budget of {limit} tokens a day is used up; it resets at 00:00 UTC."
        limit = self._keys.get(key_id, 0) if key_id else 0
        if limit and self._spent(lambda of: of.by_key[tenant, key_id]) >= limit:
            return (
                f"The budget of {limit} tokens a day of the API key {key_id} is used up; "
                "it resets at 00:00 UTC."
            )
        for group in self._limited.of(tenant, key_id):
            limit = self._limited.limits[group]
            if self._spent(lambda of, group=group: of.by_group[group]) >= limit:
                return (
                    f"The budget of {limit} tokens a day of {_label(group)} is used up; "
                    "it resets at 00:00 UTC."
                )
        return ""

    def record(self, tenant: str, key_id: str, tokens: int) -> None:
        """Count `tokens` that a line has used, for the budgets of the batch's tenant and API key."""
        if tokens:
            today = self._today()
            own = self._own.get(today)
            if own is None:
                own = self._own[today] = _UsageTotals()
            own.add(tenant, key_id, tokens, self._limited)
            own.is_published = False

    async def refresh(self, own: Mapping[str, TenantQuotas]) -> None:
        """Publish the usage of this process, and read the budgets and the usage of other processes.

        Args:
            own: quotas of the tenants that have quotas of their own.

        Raises:
            DatabaseUnavailable: the database does not respond.
        """
        today = self._today()
        await self.publish()
        if self._cleared_on != today:
            await self._table.delete_tokens(today)
            self._cleared_on = today
        limits = {name: quotas.tokens_per_day for name, quotas in own.items()}
        tenants = {name: limit for name, limit in limits.items() if limit is not None}
        keys = await self._table.key_budgets()
        groups = LimitedGroups(await self._groups.limited())
        others = _UsageTotals()
        self.has_limits = bool(self._default or any(tenants.values()) or any(keys.values()) or groups)
        if self.has_limits:
            for spent in await self._table.tokens_of_others(self._worker, today):
                others.add(*spent, groups)
        self._tenants, self._keys, self._limited = tenants, keys, groups
        self._others, self._others_on = others, today
        for own_totals in self._own.values():
            own_totals.regroup(groups)

    async def publish(self) -> None:
        """Write the token usage of this process to the database, for other processes.

        Raises:
            DatabaseUnavailable: the database does not respond. The next call writes the usage.
        """
        today = self._today()
        for day, own in list(self._own.items()):
            if not own.is_published:
                own.is_published = True
                try:
                    await self._table.publish_tokens(self._worker, day, own.rows())
                except BaseException:
                    own.is_published = False
                    raise
            if day < today and own.is_published:
                self._own.pop(day, None)

    def _spent(self, of: Callable[[_UsageTotals], int]) -> int:
        today, own = self._today(), self._own.get(self._today())
        others = of(self._others) if self._others_on == today else 0
        return others + (of(own) if own is not None else 0)

    def _today(self) -> date:
        """Return the current date in UTC. It is cached, because every response of a backend needs it."""
        days = int(self._clock() // _DAY_SECONDS)
        if days != self._days:
            self._days, self._date = days, datetime.fromtimestamp(days * _DAY_SECONDS, UTC).date()
        return self._date


def _label(group: BudgetGroup) -> str:
    return f"{'your' if group.kind is GroupKind.ORGANIZATION else 'the'} {group.kind} {group.name}"
