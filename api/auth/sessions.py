"""Sessions of the pages at `/ui`. A random token in a browser's cookie takes the place of an API key.

The browser never has the key. The database contains only a hash of the token. So a copy of the database is
not enough to sign in. All API processes share the sessions.
"""

import time
from collections.abc import Callable
from datetime import datetime, timedelta
from hashlib import sha256
from secrets import token_urlsafe

from batchwright.api.auth.caller import SessionKey
from batchwright.database.records import ApiKeyRow
from batchwright.database.tables.tenants.sessions import SessionsTable

SESSION_LIFETIME = timedelta(hours=8)
RECENT_SECONDS = 1.0
_TOKEN_BYTES = 32


def new_token() -> str:
    return token_urlsafe(_TOKEN_BYTES)


class Sessions:
    """The sessions of the pages at `/ui`. Each session belongs to an API key.

    All methods raise DatabaseUnavailable if the database does not respond.
    """

    def __init__(self, table: SessionsTable, clock: Callable[[], datetime]) -> None:
        self._table, self._clock = table, clock

    async def start(self, key: ApiKeyRow) -> str:
        """Start a session for an API key. Return the session's token, which the browser keeps in a cookie."""
        token, now = new_token(), self._clock()
        await self._table.insert(_hash(token), key.id, now, now + SESSION_LIFETIME)
        return token

    async def key_of(self, token: str) -> ApiKeyRow | None:
        """Return the API key of a session.

        Return None if the session has ended, if its key is revoked or has expired, or if its tenant is
        disabled.
        """
        now = self._clock()
        found = await self._table.find(_hash(token), now)
        return found.key if found is not None and found.is_usable(now) else None

    def cached_key_reader(self, token: str, key: ApiKeyRow) -> SessionKey:
        """Return a function that checks a session again and again, for example during a long response.

        The function returns the same as `key_of`. To save queries, it returns a key from the last
        `RECENT_SECONDS` without a new query.

        Args:
            token: the session's token.
            key: the session's API key. Read the key from the database immediately before this call.
        """
        known, until = key, time.monotonic() + RECENT_SECONDS

        async def read() -> ApiKeyRow | None:
            nonlocal known, until
            if time.monotonic() >= until:
                found = await self.key_of(token)
                if found is None:
                    return None
                known, until = found, time.monotonic() + RECENT_SECONDS
            return known

        return read

    async def end(self, token: str) -> None:
        await self._table.delete(_hash(token))


def _hash(token: str) -> bytes:
    return sha256(token.encode()).digest()
