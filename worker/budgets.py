"""What control workers show of budgets of tokens: how much of today's is used, and how many are used up."""

from collections import Counter
from collections.abc import Collection
from datetime import UTC, datetime

from batchwright.database.quotas_base import QuotasTable
from batchwright.database.tenant_rows import OrganizationRow
from batchwright.telemetry.labels import leading
from batchwright.telemetry.metrics import Metrics

_SHORT = 0.9  # as alerts have it


class BudgetWatch:
    """`default` is the budget of tenants that have none of their own, 0: no limit.

    The tenants, and the organizations, that have used the largest part of theirs have a label. Users and
    keys are only counted: their names and ids are no labels.
    """

    def __init__(self, table: QuotasTable, default: int, metrics: Metrics) -> None:
        self._table, self._default, self._metrics = table, default, metrics

    async def look(self, now: datetime) -> None:
        """Raises DatabaseUnavailable; what was shown stays."""
        own = {row.tenant: row.own.tokens_per_day for row in await self._table.all()}
        keys, users = await self._table.key_budgets(), await self._table.limited_users()
        organizations = {row.name: row for row in await self._table.organizations() if row.tokens_per_day}
        used, used_by_key = Counter[str](), Counter[str]()
        if self._default or any(own.values()) or any(keys.values()) or organizations or users:
            for spent in await self._table.spent_by_others("", now.astimezone(UTC).date()):
                used[spent.tenant] += spent.tokens
                used_by_key[spent.key_id] += spent.tokens
        budgets = {tenant: self._budget(own.get(tenant)) for tenant in used.keys() | own.keys()}
        self._show_organizations(organizations, used)
        self._show_tenants({tenant: budget for tenant, budget in budgets.items() if budget}, used)
        by_user = [(sum(used_by_key[key] for key in user.keys), user.tokens_per_day) for user in users]
        self._count("user", [tokens / limit for tokens, limit in by_user if limit])
        self._count("key", [used_by_key[key] / limit for key, limit in keys.items() if limit])

    def _count(self, of: str, parts: Collection[float]) -> None:
        """`parts`: how much of each is used."""
        self._metrics.budgets_exhausted.labels(of).set(sum(part >= 1 for part in parts))
        self._metrics.budgets_short.labels(of).set(sum(part > _SHORT for part in parts))

    def _budget(self, own: int | None) -> int:
        return self._default if own is None else own

    def _show_organizations(self, found: dict[str, OrganizationRow], used: Counter[str]) -> None:
        metrics = self._metrics
        budgets = {name: row.tokens_per_day or 0 for name, row in found.items()}
        spent = {name: sum(used[tenant] for tenant in row.tenants) for name, row in found.items()}
        parts = {name: spent[name] / budget for name, budget in budgets.items()}
        named = leading(parts, metrics.tenants.most)
        metrics.organization_budget.replace({(name,): budgets[name] for name in named})
        metrics.organization_spent.replace({(name,): spent[name] for name in named})
        self._count("organization", parts.values())

    def _show_tenants(self, budgets: dict[str, int], used: Counter[str]) -> None:
        metrics = self._metrics
        parts = {tenant: used[tenant] / budget for tenant, budget in budgets.items()}
        named = leading(parts, metrics.tenants.most)
        metrics.tenant_budget.replace({(tenant,): budgets[tenant] for tenant in named})
        metrics.tenant_spent.replace({(tenant,): used[tenant] for tenant in named})
        self._count("tenant", parts.values())
