"""What a database promises of tenants and their keys."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol

from batchwright.database.tenant_rows import FoundKey, KeyRow, TenantRow, UserRow
from batchwright.rules.api_keys import Kept


class TenantsTable(Protocol):
    """Tenants that were made by an operator; a row's name never changes and no row goes."""

    async def create(self, name: str, at: datetime) -> bool:
        """False where there is such a tenant already."""
        ...

    async def get(self, name: str) -> TenantRow | None: ...

    async def all(self) -> list[TenantRow]:
        """By name."""
        ...

    async def disable(self, name: str, at: datetime) -> TenantRow | None:
        """Of a disabled one the first time stays. None where there is no such tenant."""
        ...

    async def enable(self, name: str) -> TenantRow | None: ...


class OrganizationsTable(Protocol):
    """A tenant is in one of them at most; what they hold is read beside quotas."""

    async def create(self, name: str, tokens_per_day: int | None, at: datetime) -> bool:
        """False where there is such an organization already."""
        ...

    async def limit(self, name: str, tokens_per_day: int | None) -> bool:
        """Gives it a budget; None takes it back. False where there is no such organization, as below."""
        ...

    async def delete(self, name: str) -> bool:
        """Its tenants stay, without it."""
        ...

    async def add(self, name: str, tenant: str) -> str | None:
        """The organization that the tenant is in then: where it is in one already it stays there."""
        ...

    async def remove(self, name: str, tenant: str) -> bool:
        """False where the tenant is not in it."""
        ...


class UsersTable(Protocol):
    """Users are a tenant's; a key is of one of them at most. What they have used is read beside quotas."""

    async def create(self, tenant: str, name: str, tokens_per_day: int | None, at: datetime) -> bool:
        """False where the tenant has such a user already. Raises UnknownTenant."""
        ...

    async def all(self, tenant: str | None = None) -> list[UserRow]:
        """Of one tenant or of all, by tenant and name; revoked keys are theirs still."""
        ...

    async def limit(self, tenant: str, name: str, tokens_per_day: int | None) -> bool:
        """Gives one a budget; None takes it back. False where there is no such user, as below."""
        ...

    async def own(self, tenant: str, name: str, keys: Sequence[str]) -> bool:
        """From now on the tenant's keys of these ids are this user's, whosever they were, and no others."""
        ...

    async def delete(self, tenant: str, name: str) -> bool:
        """Its keys stay, and are nobody's."""
        ...


class ApiKeysTable(Protocol):
    async def insert(self, key: KeyRow, kept: Kept) -> None:
        """A second insert of the same row changes nothing. Raises UnknownTenant, UnknownUser."""
        ...

    async def find(self, prefix: str) -> FoundKey | None:
        """Whatever has become of it: what is not usable any more is found too."""
        ...

    async def all(self, tenant: str | None = None) -> list[KeyRow]:
        """Of one tenant or of all, by tenant, then by creation; revoked ones too."""
        ...

    async def revoke(self, key: str, at: datetime) -> KeyRow | None:
        """`key` is an id or a prefix. Of a revoked one the first time stays."""
        ...

    async def limit(self, key: str, tokens_per_day: int | None) -> KeyRow | None:
        """Gives a key, by id or prefix, a budget; None takes it back."""
        ...

    async def give(self, key: str, user: str | None) -> KeyRow | None:
        """Makes a key, by id or prefix, that user's of its tenant; None: nobody's. Raises UnknownUser."""
        ...

    async def note_used(self, uses: Mapping[str, datetime]) -> None:
        """By id. A minute goes by between two times that are kept."""
        ...
