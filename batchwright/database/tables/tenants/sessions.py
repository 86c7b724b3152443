"""Table of sessions. A session begins when a person signs in to the web pages with an API key."""

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from batchwright.database.pool import ConnectionPool
from batchwright.database.records import StoredApiKey
from batchwright.database.sql import queries
from batchwright.database.tables.tenants.api_keys import stored_key

_MAX_DELETED = 1000


class SessionsTable(Protocol):
    async def insert(self, token_hash: bytes, key_id: str, at: datetime, expires_at: datetime) -> None:
        """Insert a session of an API key. Sessions that have expired at the time `at` are deleted.

        `token_hash` is the hash of the session's token, by which `find` and `delete` find the session.
        """
        ...

    async def find(self, token_hash: bytes, at: datetime) -> StoredApiKey | None:
        """Return the API key of a session by the hash of its token; None if there is no such session.

        An expired session counts as missing. The key is returned even if it is revoked or expired, or if its
        tenant is disabled.
        """
        ...

    async def delete(self, token_hash: bytes) -> None:
        """Delete the session whose token has this hash. If there is no such session, nothing changes."""
        ...


@dataclass(frozen=True)
class SessionQueries:
    insert: str
    delete_expired: str
    find: str
    delete: str


class PostgresSessions(SessionsTable):
    def __init__(self, connections: ConnectionPool) -> None:
        self._connections = connections
        self._sql = queries(SessionQueries, "sessions")

    async def insert(self, token_hash: bytes, key_id: str, at: datetime, expires_at: datetime) -> None:
        await self._connections.execute(self._sql.delete_expired, at, _MAX_DELETED)
        await self._connections.execute(self._sql.insert, token_hash, key_id, at, expires_at)

    async def find(self, token_hash: bytes, at: datetime) -> StoredApiKey | None:
        record = await self._connections.fetchrow(self._sql.find, token_hash, at)
        return None if record is None else stored_key(record)

    async def delete(self, token_hash: bytes) -> None:
        await self._connections.execute(self._sql.delete, token_hash)
