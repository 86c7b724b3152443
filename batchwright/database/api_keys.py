"""The table of API keys."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from batchwright.database.connection import Connections
from batchwright.database.driver import ReferenceMissing, Row, constraint_of
from batchwright.database.errors import UnknownTenant, UnknownUser
from batchwright.database.sql import queries
from batchwright.database.tenant_rows import FoundKey, KeyRow
from batchwright.database.tenants_base import ApiKeysTable
from batchwright.rules.api_keys import Kept

_OF_USER = "api_keys_user"


@dataclass(frozen=True)
class ApiKeyQueries:
    insert: str
    find: str
    all: str
    revoke: str
    limit: str
    give: str
    tenant_of: str
    note_used: str


class ApiKeys(ApiKeysTable):
    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._sql = queries(ApiKeyQueries, "api_keys")

    async def insert(self, key: KeyRow, kept: Kept) -> None:
        try:
            await self._connections.execute(
                self._sql.insert,
                key.id,
                key.tenant,
                key.prefix,
                kept.salt,
                kept.hash,
                [scope.value for scope in key.scopes],
                key.label,
                key.created_at,
                key.expires_at,
                key.tokens_per_day,
                key.user_name,
            )
        except ReferenceMissing as error:
            if key.user_name is not None and constraint_of(error) == _OF_USER:
                raise UnknownUser(key.tenant, key.user_name) from None
            raise UnknownTenant(key.tenant) from None

    async def find(self, prefix: str) -> FoundKey | None:
        record = await self._connections.fetchrow(self._sql.find, prefix)
        if record is None:
            return None
        kept = Kept(record["salt"], record["hash"])
        return FoundKey(key=_key(record), kept=kept, tenant_disabled_at=record["disabled_at"])

    async def all(self, tenant: str | None = None) -> list[KeyRow]:
        return [_key(record) for record in await self._connections.fetch(self._sql.all, tenant)]

    async def revoke(self, key: str, at: datetime) -> KeyRow | None:
        record = await self._connections.fetchrow(self._sql.revoke, key, at)
        return None if record is None else _key(record)

    async def limit(self, key: str, tokens_per_day: int | None) -> KeyRow | None:
        record = await self._connections.fetchrow(self._sql.limit, key, tokens_per_day)
        return None if record is None else _key(record)

    async def give(self, key: str, user: str | None) -> KeyRow | None:
        try:
            record = await self._connections.fetchrow(self._sql.give, key, user)
        except ReferenceMissing:
            owner = await self._connections.fetchrow(self._sql.tenant_of, key)
            assert owner is not None, "rows of keys stay"
            raise UnknownUser(owner["tenant"], user or "") from None
        return None if record is None else _key(record)

    async def note_used(self, uses: Mapping[str, datetime]) -> None:
        await self._connections.execute(self._sql.note_used, list(uses), list(uses.values()))


def _key(record: Row) -> KeyRow:
    return KeyRow.model_validate({name: record[name] for name in KeyRow.model_fields})
