"""Metrics of daily budgets. Workers with the role `control` refresh them with the metrics of the fleet."""

from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import NamedTuple

from batchwright.contracts.terms import GroupKind, Quota
from batchwright.database.tables.tenants.budget_groups import BudgetGroupsTable
from batchwright.database.tables.tenants.daily_usage import UsageOfDay
from batchwright.database.tables.tenants.quotas import QuotasTable
from batchwright.rules.tenants.quotas import BUDGETS, DailyAmounts, QuotaLimits
from batchwright.rules.token_costs import AMOUNT_PER_UNIT
from batchwright.telemetry.labels import top_names
from batchwright.telemetry.metrics import Metrics
from batchwright.telemetry.prometheus.metric_types import Gauge

_NEARLY_USED = 0.9  # fraction of a budget above which alerts fire


class BudgetCollector:
    """The collector of metrics of daily budgets.

    The metrics show today's usage, and how many budgets are used up or nearly used up (more than 90 %).

    The tenants and organizations that have used the highest percentage of their budgets get their own series.
    Budgets of teams, users and API keys are only counted, because their names and ids must not become labels.

    Args:
        default: the budget of each tenant that has no budget of its own.
    """

    def __init__(
        self, table: QuotasTable, groups: BudgetGroupsTable, default: DailyAmounts, metrics: Metrics
    ) -> None:
        self._table, self._groups, self._metrics = table, groups, metrics
        self._defaults = QuotaLimits(tokens_per_day=default.tokens, cost_per_day=default.cost)

    async def refresh(self, now: datetime) -> None:
        """Read the budgets and today's usage, and set their gauges.

        Raises:
            DatabaseUnavailable: the database does not respond. The gauges keep their values.
        """
        default, metrics = self._defaults.budget, self._metrics
        own = {row.tenant: row.own.limits(self._defaults).budget for row in await self._table.all()}
        keys, groups = await self._table.key_budgets(), await self._groups.limited()
        has_limits = groups or any(map(any, (default, *own.values(), *keys.values())))
        day = now.astimezone(UTC).date()
        usage = UsageOfDay(await self._table.daily_usage(day) if has_limits else ())
        owners = {
            kind: {
                row.group: _BudgetUse(row.budget, usage.of_group(row)) for row in groups if row.kind is kind
            }
            for kind in GroupKind
        }
        organizations = {group.name: use for group, use in owners[GroupKind.ORGANIZATION].items()}
        tenants = {
            tenant: _BudgetUse(own.get(tenant, default), usage.of_tenant(tenant))
            for tenant in usage.tenants | own.keys()
        }
        self._show(organizations, metrics.organization_budget, metrics.organization_budget_used)
        self._show(tenants, metrics.tenant_budget, metrics.tenant_budget_used)
        for kind, uses in owners.items():
            self._count(kind, uses.values())
        self._count("tenant", tenants.values())
        self._count("key", [_BudgetUse(limit, usage.of_key(*key)) for key, limit in keys.items()])

    def _show(self, uses: Mapping[str, "_BudgetUse"], budget: Gauge, used: Gauge) -> None:
        """Set the gauges `budget` and `used` for the owners with the highest percentage of used budget.

        `uses` contains all owners, by name. For each kind of budget (tokens or cost), the maximum number of
        owners with gauges is the maximum number of tenants that metrics may name.
        """
        shown: dict[tuple[str, Quota], _BudgetUse] = {}
        for quota in BUDGETS:
            parts = {name: use.part(quota) for name, use in uses.items() if use.limit.of(quota)}
            shown |= {(name, quota): uses[name] for name in top_names(parts, self._metrics.tenants.limit)}
        budget.replace({key: _in_units(use.limit, key[1]) for key, use in shown.items()})
        used.replace({key: _in_units(use.used, key[1]) for key, use in shown.items()})

    def _count(self, owner: str, uses: Collection["_BudgetUse"]) -> None:
        for quota in BUDGETS:
            parts = [use.part(quota) for use in uses if use.limit.of(quota)]
            self._metrics.budgets_exhausted.labels(owner, quota).set(sum(part >= 1 for part in parts))
            self._metrics.budgets_short.labels(owner, quota).set(sum(part > _NEARLY_USED for part in parts))


class _BudgetUse(NamedTuple):
    """A budget, and what its owner has used today."""

    limit: DailyAmounts
    used: DailyAmounts

    def part(self, quota: Quota) -> float:
        return self.used.of(quota) / self.limit.of(quota)


def _in_units(amounts: DailyAmounts, quota: Quota) -> float:
    """Return the tokens or the cost in `amounts` (what `quota` limits), as the value of a metric.

    A cost is returned in whole units of the currency.
    """
    return amounts.cost / AMOUNT_PER_UNIT if quota is Quota.COST_PER_DAY else amounts.tokens
