"""What the tables of tenants and their keys hold, as values."""

from datetime import datetime

from pydantic import Field

from batchwright.contracts.message import Message
from batchwright.rules.api_keys import Kept, Scope, is_usable


class TenantRow(Message):
    name: str
    created_at: datetime
    disabled_at: datetime | None = None


class OrganizationRow(Message):
    """Tenants that share a budget: of tokens a day, None: there is none."""

    name: str
    created_at: datetime
    tokens_per_day: int | None = None
    tenants: list[str]


class UserRow(Message):
    """Keys of a tenant, by their ids, that share a budget: of tokens a day, None: there is none."""

    tenant: str
    name: str
    created_at: datetime
    tokens_per_day: int | None = None
    keys: list[str]


class KeyRow(Message):
    """All of a key that may be shown: neither its secret nor the secret's hash."""

    id: str
    tenant: str
    prefix: str
    scopes: list[Scope]
    label: str = ""
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    last_used_at: datetime | None = None
    tokens_per_day: int | None = None  # None, 0: no budget of its own
    user_name: str | None = None  # whose it is, of the tenant's users; None: nobody's


class FoundKey(Message):
    """What a key is checked against; never shown or logged."""

    key: KeyRow
    kept: Kept = Field(repr=False)
    tenant_disabled_at: datetime | None = None

    def is_usable(self, at: datetime) -> bool:
        return is_usable(
            at,
            expires_at=self.key.expires_at,
            revoked_at=self.key.revoked_at,
            disabled_at=self.tenant_disabled_at,
        )
