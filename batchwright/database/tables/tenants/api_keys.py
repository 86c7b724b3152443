"""Table of API keys."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from batchwright.database.driver import ReferenceMissing, Row
from batchwright.database.errors import UnknownTenant
from batchwright.database.pool import ConnectionPool
from batchwright.database.records import ApiKeyRow, StoredApiKey
from batchwright.database.sql import queries
from batchwright.database.tables.tenants.budget_groups import PostgresBudgetGroups
from batchwright.rules.tenants.api_keys import SecretHash
from batchwright.rules.tenants.quotas import BudgetGroup


class ApiKeysTable(Protocol):
    async def insert(
        self, key: ApiKeyRow, secret_hash: SecretHash, groups: Sequence[BudgetGroup] = ()
    ) -> None:
        """Insert an API key, and add it to `groups`, which are teams and users of the same tenant.

        `secret_hash` is the hash of the key's secret. Raises UnknownTenant or UnknownBudgetGroup if the
        tenant or one of the groups does not exist.
        """
        ...

    async def find(self, prefix: str) -> StoredApiKey | None:
        """Return the API key with this prefix, or None if there is no such key. The prefix is the part of the
        key that is not secret.

        A key is returned even if it is revoked or expired, or if its tenant is disabled.
        """
        ...

    async def all(self, tenant: str | None = None) -> list[ApiKeyRow]:
        """Return the API keys of a tenant, including revoked keys.

        If `tenant` is None, return the keys of all tenants.
        """
        ...

    async def revoke(self, key: str, at: datetime) -> ApiKeyRow | None:
        """Revoke the API key with the id or prefix `key`, and return it. Return None if there is no such key.

        If the key was revoked before, the time of the first revocation stays. The prefix is the part of the
        key that is not secret.
        """
        ...

    async def limit(
        self,
        key: str,
        *,
        tokens_per_day: int | None = None,
        cost_per_day: str | None = None,
        max_in_flight: int | None = None,
    ) -> ApiKeyRow | None:
        """Change limits of an API key, and return the key. Return None if there is no such key.

        For each limit, None means no change, and `0` removes the limit.

        Args:
            key: id or prefix of the key.
            tokens_per_day: daily token budget of the key.
            cost_per_day: daily budget of the key in the currency of the models' prices, as decimal text.
            max_in_flight: number of the key's requests that may be in flight at the same time, over all
                workers.
        """
        ...

    async def record_uses(self, uses: Mapping[str, datetime]) -> None:
        """Store the times when API keys were last used, by key id.

        A time is ignored if it is less than a minute later than the stored time.
        """
        ...


@dataclass(frozen=True)
class ApiKeyQueries:
    insert: str
    find: str
    all: str
    revoke: str
    limit: str
    record_uses: str


class PostgresApiKeys(ApiKeysTable):
    def __init__(self, connections: ConnectionPool, groups: PostgresBudgetGroups) -> None:
        self._connections, self._groups = connections, groups
        self._sql = queries(ApiKeyQueries, "api_keys")

    async def insert(
        self, key: ApiKeyRow, secret_hash: SecretHash, groups: Sequence[BudgetGroup] = ()
    ) -> None:
        try:
            async with self._connections.transaction() as session:
                inserted = await session.fetchrow(
                    self._sql.insert,
                    key.id,
                    key.tenant,
                    key.prefix,
                    secret_hash.salt,
                    secret_hash.hash,
                    [scope.value for scope in key.scopes],
                    key.label,
                    key.created_at,
                    key.expires_at,
                    key.tokens_per_day,
                    key.max_in_flight,
                    key.cost_per_day,
                )
                if inserted is not None:
                    for group in sorted(groups):
                        await self._groups.add_new_key(session, group, key.id)
        except ReferenceMissing:
            raise UnknownTenant(key.tenant) from None

    async def find(self, prefix: str) -> StoredApiKey | None:
        record = await self._connections.fetchrow(self._sql.find, prefix)
        return None if record is None else stored_key(record)

    async def all(self, tenant: str | None = None) -> list[ApiKeyRow]:
        return [_key(record) for record in await self._connections.fetch(self._sql.all, tenant)]

    async def revoke(self, key: str, at: datetime) -> ApiKeyRow | None:
        record = await self._connections.fetchrow(self._sql.revoke, key, at)
        return None if record is None else _key(record)

    async def limit(
        self,
        key: str,
        *,
        tokens_per_day: int | None = None,
        cost_per_day: str | None = None,
        max_in_flight: int | None = None,
    ) -> ApiKeyRow | None:
        limits = (tokens_per_day, max_in_flight, cost_per_day)
        record = await self._connections.fetchrow(self._sql.limit, key, *limits)
        return None if record is None else _key(record)

    async def record_uses(self, uses: Mapping[str, datetime]) -> None:
        await self._connections.execute(self._sql.record_uses, list(uses), list(uses.values()))


def stored_key(record: Row) -> StoredApiKey:
    """Return the API key in a database row. The row also has the column `disabled_at` of the key's tenant."""
    secret_hash = SecretHash(record["salt"], record["hash"])
    return StoredApiKey(key=_key(record), secret_hash=secret_hash, tenant_disabled_at=record["disabled_at"])


def _key(record: Row) -> ApiKeyRow:
    return ApiKeyRow.model_validate({name: record[name] for name in ApiKeyRow.model_fields})
