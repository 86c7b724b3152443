"""What organizations have used of a day."""

from collections import Counter
from collections.abc import Sequence
from datetime import date

from batchwright.database.quotas_base import QuotasTable
from batchwright.database.tenant_rows import OrganizationRow


async def spent_by_organizations(table: QuotasTable, day: date) -> Sequence[tuple[OrganizationRow, int]]:
    """All by name, each with the tokens of the tenants that are in it now. Raises DatabaseUnavailable."""
    used = Counter[str]()
    for spent in await table.spent_by_others("", day):
        used[spent.tenant] += spent.tokens
    return [(row, sum(used[tenant] for tenant in row.tenants)) for row in await table.organizations()]
