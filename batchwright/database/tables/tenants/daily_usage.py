"""Daily budgets, and the tokens and cost that tenants, API keys and budget groups have used on one day."""

from collections.abc import Iterable, Set

from batchwright.contracts.terms import GroupKind
from batchwright.database.driver import Row
from batchwright.database.records import BudgetGroupRow
from batchwright.database.tables.tenants.quota_records import DailyUsage
from batchwright.rules.tenants.quotas import DailyAmounts
from batchwright.rules.token_costs import amount_of


def parse_budget(record: Row) -> DailyAmounts:
    """Return the budget in the columns `tokens_per_day` and `cost_per_day` of a row."""
    return DailyAmounts(record["tokens_per_day"] or 0, amount_of(record["cost_per_day"] or "0"))


def parse_used(record: Row) -> DailyAmounts:
    """Return the usage in the columns `tokens` and `cost` of a row."""
    return DailyAmounts(record["tokens"], amount_of(record["cost"]))


class UsageOfDay:
    """Tokens and cost of one day, added up over all workers.

    Args:
        rows: usage by tenant and API key, as `QuotasTable.daily_usage` returns it.
    """

    def __init__(self, rows: Iterable[DailyUsage]) -> None:
        self._by_tenant: dict[str, DailyAmounts] = {}
        self._by_key: dict[tuple[str, str], DailyAmounts] = {}
        for tenant, key_id, *amounts in rows:
            used = DailyAmounts(*amounts)
            self._by_tenant[tenant] = self.of_tenant(tenant).plus(used)
            self._by_key[tenant, key_id] = self.of_key(tenant, key_id).plus(used)

    @property
    def tenants(self) -> Set[str]:
        """Names of the tenants that have used tokens or money on this day."""
        return self._by_tenant.keys()

    def of_tenant(self, tenant: str) -> DailyAmounts:
        return self._by_tenant.get(tenant, DailyAmounts())

    def of_key(self, tenant: str, key_id: str) -> DailyAmounts:
        return self._by_key.get((tenant, key_id), DailyAmounts())

    def of_group(self, group: BudgetGroupRow) -> DailyAmounts:
        """Return the tokens and the cost that all present members of a group have used on this day."""
        used = DailyAmounts()
        for member in group.members:
            is_tenant = group.kind is GroupKind.ORGANIZATION
            used = used.plus(self.of_tenant(member) if is_tenant else self.of_key(group.tenant, member))
        return used
