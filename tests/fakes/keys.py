"""Keys that tests come with."""

from datetime import UTC, datetime

from batchwright.database.base import DatabaseLike
from batchwright.database.tenant_rows import KeyRow
from batchwright.rules.api_keys import ApiKey, Scope, keep, new_key, new_key_id

NOW = datetime(2026, 3, 1, tzinfo=UTC)
ALL = tuple(Scope)


async def made_key(
    database: DatabaseLike,
    tenant: str,
    *,
    scopes: tuple[Scope, ...] | list[Scope] = ALL,
    expires_at: datetime | None = None,
    revoked_at: datetime | None = None,
    user: str | None = None,
) -> ApiKey:
    """A key of the tenant, which is made with it, as is its user."""
    await database.tenants.create(tenant, NOW)
    if user is not None:
        await database.users.create(tenant, user, None, NOW)
    key = new_key()
    row = KeyRow(
        id=new_key_id(),
        tenant=tenant,
        prefix=key.prefix,
        scopes=list(scopes),
        created_at=NOW,
        expires_at=expires_at,
        user_name=user,
    )
    await database.api_keys.insert(row, keep(key))
    if revoked_at is not None:
        await database.api_keys.revoke(row.id, revoked_at)
    return key
