"""API keys for tests."""

from datetime import UTC, datetime

from batchwright.contracts.terms import GroupKind
from batchwright.database.database import Database
from batchwright.database.records import ApiKeyRow
from batchwright.rules.tenants.api_keys import ApiKey, hash_secret, new_key, new_key_id
from batchwright.rules.tenants.quotas import BudgetGroup
from batchwright.rules.tenants.scopes import Scope

NOW = datetime(2026, 3, 1, tzinfo=UTC)
ALL = tuple(Scope)


async def create_key(
    database: Database,
    tenant: str,
    *,
    scopes: tuple[Scope, ...] | list[Scope] = ALL,
    expires_at: datetime | None = None,
    revoked_at: datetime | None = None,
    user: str | None = None,
) -> ApiKey:
    """Create an API key, its tenant and its user. Return the key with its secret.

    Args:
        scopes: permissions of the key.
        revoked_at: time at which the key is revoked; None leaves it valid.
        user: name of the tenant's user to whom the key belongs; None if it belongs to no user.
    """
    await database.tenants.create(tenant, NOW)
    groups = [] if user is None else [BudgetGroup(GroupKind.USER, tenant, user)]
    for group in groups:
        await database.budget_groups.create(group, None, NOW)
    key = new_key()
    row = ApiKeyRow(
        id=new_key_id(),
        tenant=tenant,
        prefix=key.prefix,
        scopes=list(scopes),
        created_at=NOW,
        expires_at=expires_at,
    )
    await database.api_keys.insert(row, hash_secret(key), groups)
    if revoked_at is not None:
        await database.api_keys.revoke(row.id, revoked_at)
    return key
