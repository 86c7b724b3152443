"""What those who share a budget have used of a day: organizations, and users."""

from collections import Counter
from collections.abc import Sequence
from datetime import date

from batchwright.database.quotas_base import QuotasTable
from batchwright.database.tenant_rows import OrganizationRow, UserRow


async def spent_by_organizations(table: QuotasTable, day: date) -> Sequence[tuple[OrganizationRow, int]]:
    """All by name, each with the tokens of the tenants that are in it now. Raises DatabaseUnavailable."""
    used = Counter[str]()
    for spent in await table.spent_by_others("", day):
        used[spent.tenant] += spent.tokens
    return [(row, sum(used[tenant] for tenant in row.tenants)) for row in await table.organizations()]


async def spent_by_users(
    table: QuotasTable, users: Sequence[UserRow], day: date
) -> Sequence[tuple[UserRow, int]]:
    """Each with the tokens of the keys that are its own now. Raises DatabaseUnavailable."""
    used = await spent_by_keys(table, day)
    return [(row, sum(used[row.tenant, key] for key in row.keys)) for row in users]


async def spent_by_keys(table: QuotasTable, day: date) -> Counter[tuple[str, str]]:
    """Over all workers, by tenant and the key's id. Raises DatabaseUnavailable."""
    used = Counter[tuple[str, str]]()
    for spent in await table.spent_by_others("", day):
        used[spent.tenant, spent.key_id] += spent.tokens
    return used
