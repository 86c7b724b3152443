"""Sessions of the pages at `/ui`: a random token in a browser's cookie stands for an API key.

The browser never has the key, and the database only the token's hash, so a copy of the table signs nobody in.
Every API process finds the same sessions.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from hashlib import sha256
from secrets import token_urlsafe

from batchwright.api.services.cache import CoalescingCache
from batchwright.database.records import ApiKeyRow
from batchwright.database.tenants.sessions import SessionsTable

SESSION_LIFETIME = timedelta(hours=8)
_TOKEN_BYTES = 32


def new_token() -> str:
    return token_urlsafe(_TOKEN_BYTES)


class Sessions:
    """Starts, finds and ends sessions.

    All methods raise DatabaseUnavailable if the database does not respond.
    """

    def __init__(self, table: SessionsTable, clock: Callable[[], datetime], recent_seconds: float) -> None:
        """Create the object. `recent_seconds` is the maximum age of a result of `recent_key_of`."""
        self._table, self._clock = table, clock
        self._recent = CoalescingCache(self.key_of, recent_seconds)

    async def start(self, key: ApiKeyRow) -> str:
        """Start a session of this API key, and return its token."""
        token, now = new_token(), self._clock()
        await self._table.insert(_hash(token), key.id, now, now + SESSION_LIFETIME)
        return token

    async def key_of(self, token: str) -> ApiKeyRow | None:
        """Return the API key of a session.

        Return None if the session has ended, or if its key is revoked or expired, or its tenant disabled.
        """
        now = self._clock()
        found = await self._table.find(_hash(token), now)
        return found.key if found is not None and found.is_usable(now) else None

    async def recent_key_of(self, token: str) -> ApiKeyRow | None:
        """Return the API key of a session as it was `recent_seconds` ago or later.

        The streams of open pages call this again and again. A request has to begin with `key_of`.
        """
        return await self._recent.get(token)

    async def end(self, token: str) -> None:
        await self._table.delete(_hash(token))


def _hash(token: str) -> bytes:
    return sha256(token.encode()).digest()
