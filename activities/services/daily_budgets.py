"""Daily budgets for tokens and for cost. Tenants, API keys and budget groups may have such budgets.

A process counts the usage of its own lines at once. It reads the usage of other processes from the database
at each refresh. Usage may exceed a budget a little for two reasons. Some lines are in flight when the budget
is used up. And other workers may send more lines until their next refresh.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from secrets import token_hex
from typing import NamedTuple

from batchwright.contracts.terms import GroupKind, Quota
from batchwright.database.records import BudgetGroupRow
from batchwright.database.tables.tenants.budget_groups import BudgetGroupsTable
from batchwright.database.tables.tenants.quota_records import DailyUsage, TenantQuotas
from batchwright.database.tables.tenants.quotas import QuotasTable
from batchwright.process_name import process_name
from batchwright.rules.tenants.quotas import BUDGETS, BudgetGroup, DailyAmounts, QuotaLimits
from batchwright.rules.token_costs import amount_text

_NOTHING = DailyAmounts()


class LimitedGroups:
    """All budget groups, with the daily budget of each group. The members of a group share its budget.

    A budget group is an organization with tenants as members, or a group of one tenant's API keys.
    """

    def __init__(self, rows: Iterable[BudgetGroupRow] = ()) -> None:
        self.limits: dict[BudgetGroup, DailyAmounts] = {}
        self._of_tenants: dict[str, BudgetGroup] = {}
        self._of_keys: dict[tuple[str, str], list[BudgetGroup]] = {}
        for row in rows:
            self.limits[row.group] = row.budget
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


class UsedUpBudget(NamedTuple):
    """A budget that is used up today, and a message about it for the client."""

    quota: Quota
    message: str


_NEVER = date.min
_DAY_SECONDS = 86_400


@dataclass
class _UsageTotals:
    """The tokens and the cost that were used on one day, by tenant, API key and budget group."""

    by_tenant: dict[str, DailyAmounts] = field(default_factory=dict[str, DailyAmounts])
    by_key: dict[tuple[str, str], DailyAmounts] = field(default_factory=dict[tuple[str, str], DailyAmounts])
    by_group: dict[BudgetGroup, DailyAmounts] = field(default_factory=dict[BudgetGroup, DailyAmounts])
    is_published: bool = True

    def add(self, tenant: str, key_id: str, used: DailyAmounts, groups: LimitedGroups) -> None:
        self.by_tenant[tenant] = self.by_tenant.get(tenant, _NOTHING).plus(used)
        self.by_key[tenant, key_id] = self.by_key.get((tenant, key_id), _NOTHING).plus(used)
        self._add_to_groups(tenant, key_id, used, groups)

    def regroup(self, groups: LimitedGroups) -> None:
        """Compute the usage of budget groups again, after their members have changed."""
        self.by_group.clear()
        for (tenant, key_id), used in self.by_key.items():
            self._add_to_groups(tenant, key_id, used, groups)

    def _add_to_groups(self, tenant: str, key_id: str, used: DailyAmounts, groups: LimitedGroups) -> None:
        for group in groups.of(tenant, key_id):
            self.by_group[group] = self.by_group.get(group, _NOTHING).plus(used)

    def rows(self) -> list[DailyUsage]:
        return [DailyUsage(tenant, key_id, *used) for (tenant, key_id), used in self.by_key.items()]


class DailyBudgets:
    """All daily budgets, and how much of each is used, as far as this process knows.

    Args:
        default: budget of tenants without a budget of their own; 0 means no limit.
        worker: name under which this process publishes its usage; by default, a new unique name.
    """

    def __init__(
        self,
        table: QuotasTable,
        groups: BudgetGroupsTable,
        default: DailyAmounts = _NOTHING,
        *,
        worker: str = "",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._table, self._groups, self._default, self._clock = table, groups, default, clock
        self.has_limits = any(default)  # True if any budget exists
        self._worker = worker or f"{process_name()}:{token_hex(4)}"
        self._days, self._date = -1, date.min  # today as days since 1970, and as a date
        self._own: dict[date, _UsageTotals] = {}
        self._others, self._others_on = _UsageTotals(), _NEVER
        self._tenants: Mapping[str, DailyAmounts] = {}
        self._keys: Mapping[tuple[str, str], DailyAmounts] = {}
        self._limited = LimitedGroups()
        self._cleared_on = _NEVER

    def exceeded(self, tenant: str, key_id: str, currency: str) -> UsedUpBudget | None:
        """Return a daily budget that applies to a batch and is used up; None if there is none.

        The budgets that apply are those of the tenant, of the API key, and of their budget groups.

        Args:
            key_id: id of the API key that created the batch; empty if the batch was created without a key.
            currency: currency of the model's prices; empty if the model has no prices. Lines of such a model
                cost nothing, so budgets of cost do not apply to them.
        """
        for limit, used, owner in self._budgets_of(tenant, key_id):
            for quota in BUDGETS:
                most = limit.of(quota)
                if not most or used.of(quota) < most or (quota is Quota.COST_PER_DAY and not currency):
                    continue
                amount = f"{most} tokens"
                if quota is Quota.COST_PER_DAY:
                    amount = f"{amount_text(most)} {currency}"
                subject = (
                    f"The budget of {amount} a day of {owner}" if owner else f"Your budget of {amount} a day"
                )
                return UsedUpBudget(quota, f"{subject} is used up; it resets at 00:00 UTC.")
        return None

    def _budgets_of(self, tenant: str, key_id: str) -> Iterator[tuple[DailyAmounts, DailyAmounts, str]]:
        """Yield each budget that applies to a batch: the limit, the usage of today, and the owner's name.

        The owner is the tenant, the API key or a budget group. If the owner is the tenant, the name is empty.
        """
        if any(limit := self._tenants.get(tenant, self._default)):
            yield limit, self._used(lambda totals: totals.by_tenant.get(tenant)), ""
        if any(limit := self._keys.get((tenant, key_id), _NOTHING)):
            used = self._used(lambda totals: totals.by_key.get((tenant, key_id)))
            yield limit, used, f"the API key {key_id}"
        for group in self._limited.of(tenant, key_id):
            used = self._used(lambda totals, group=group: totals.by_group.get(group))
            whose = "your" if group.kind is GroupKind.ORGANIZATION else "the"
            yield self._limited.limits[group], used, f"{whose} {group.kind} {group.name}"

    def record(self, tenant: str, key_id: str, tokens: int, cost: int = 0) -> None:
        """Count the tokens and the cost of a line for the budgets of the batch's tenant and API key.

        They also count for the budget groups of the tenant and the key.

        Args:
            cost: in 10^-12 of the currency's unit (`rules/token_costs.py`).
        """
        if tokens or cost:
            today = self._today()
            own = self._own.get(today)
            if own is None:
                own = self._own[today] = _UsageTotals()
            own.add(tenant, key_id, DailyAmounts(tokens, cost), self._limited)
            own.is_published = False

    async def refresh(self, own: Mapping[str, TenantQuotas]) -> None:
        """Publish the usage of this process, and read all budgets and the usage of other processes.

        Args:
            own: quotas of the tenants that have quotas of their own.

        Raises:
            DatabaseUnavailable: the database does not respond.
        """
        today = self._today()
        await self.publish()
        if self._cleared_on != today:
            await self._table.delete_usage(today)
            self._cleared_on = today
        defaults = QuotaLimits(tokens_per_day=self._default.tokens, cost_per_day=self._default.cost)
        tenants = {name: quotas.limits(defaults).budget for name, quotas in own.items()}
        keys = await self._table.key_budgets()
        groups = LimitedGroups(await self._groups.limited())
        others = _UsageTotals()
        limits = (self._default, *tenants.values(), *keys.values())
        self.has_limits = any(map(any, limits)) or bool(groups)
        if self.has_limits:
            for tenant, key_id, tokens, cost in await self._table.daily_usage(today, except_for=self._worker):
                others.add(tenant, key_id, DailyAmounts(tokens, cost), groups)
        self._tenants, self._keys, self._limited = tenants, keys, groups
        self._others, self._others_on = others, today
        for own_totals in self._own.values():
            own_totals.regroup(groups)

    async def publish(self) -> None:
        """Write the usage of this process to the database, where other processes read it.

        Raises:
            DatabaseUnavailable: the database does not respond. The next call writes the usage.
        """
        today = self._today()
        for day, own in list(self._own.items()):
            if not own.is_published:
                own.is_published = True
                try:
                    await self._table.publish_usage(self._worker, day, own.rows())
                except BaseException:
                    own.is_published = False
                    raise
            if day < today and own.is_published:
                self._own.pop(day, None)

    def _used(self, of: Callable[[_UsageTotals], DailyAmounts | None]) -> DailyAmounts:
        own = self._own.get(self._today())
        used = _NOTHING if own is None else of(own) or _NOTHING
        return used.plus(of(self._others) or _NOTHING) if self._others_on == self._today() else used

    def _today(self) -> date:
        """Return the current date in UTC. It is cached, because every response of a backend needs it."""
        days = int(self._clock() // _DAY_SECONDS)
        if days != self._days:
            self._days, self._date = days, datetime.fromtimestamp(days * _DAY_SECONDS, UTC).date()
        return self._date
