"""Cache of valid API keys. Also stores in the database when each key was last used."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import NamedTuple

from batchwright.background import log_failure
from batchwright.database.errors import DatabaseUnavailable
from batchwright.database.records import ApiKeyRow, StoredApiKey
from batchwright.database.tables.tenants.api_keys import ApiKeysTable
from batchwright.rules.tenants.api_keys import ApiKey, secret_matches

logger = logging.getLogger(__name__)

CACHE_SECONDS = 2.0  # a revoked key may still be accepted for this time
MAX_CACHED_KEYS = 10_000  # for more keys, the least recently verified one is dropped


class _CachedKey(NamedTuple):
    found: StoredApiKey
    at: float


class KeyCache:
    """A cache that verifies API keys, and keeps valid keys for `CACHE_SECONDS`.

    A key that does not exist costs a database lookup and a hash comparison, like a key with a wrong secret.
    So the response time does not reveal which keys exist.
    """

    def __init__(
        self,
        keys: ApiKeysTable,
        clock: Callable[[], datetime],
        monotonic: Callable[[], float],
    ) -> None:
        self._keys = keys
        self._clock = clock
        self._monotonic = monotonic
        self._cached: OrderedDict[str, _CachedKey] = OrderedDict()

    async def verify(self, key: ApiKey) -> ApiKeyRow | None:
        """Return the database row of a valid key; None if the key is wrong, revoked or expired.

        Raises:
            DatabaseUnavailable: the key is not cached, and the database does not respond.
        """
        cached = self._cached.get(key.prefix)
        if cached and self._monotonic() - cached.at < CACHE_SECONDS and self._is_valid(key, cached.found):
            return cached.found.key
        looked_up_at = self._monotonic()
        found = await self._keys.find(key.prefix)
        if not self._is_valid(key, found) or found is None:
            if self.is_cached(key):
                self._cached.pop(key.prefix, None)
            return None
        self._cached[key.prefix] = _CachedKey(found, looked_up_at)
        self._cached.move_to_end(key.prefix)
        if len(self._cached) > MAX_CACHED_KEYS:
            self._cached.popitem(last=False)
        return found.key

    def is_cached(self, key: ApiKey) -> bool:
        """Return True if the cache contains the key and the key's secret is correct.

        The cached row may be older than `CACHE_SECONDS`.
        """
        cached = self._cached.get(key.prefix)
        return cached is not None and secret_matches(key, cached.found.secret_hash)

    def _is_valid(self, key: ApiKey, found: StoredApiKey | None) -> bool:
        matches = secret_matches(key, None if found is None else found.secret_hash)
        return matches and found is not None and found.is_usable(self._clock())


RECORD_TASK = "record_key_use"  # name of the background tasks
_RECORD_INTERVAL = timedelta(minutes=1)
_MAX_RECORDED_KEYS = 10_000


class KeyUsageRecorder:
    def __init__(self, keys: ApiKeysTable) -> None:
        self._keys = keys
        self._recorded: OrderedDict[str, datetime] = OrderedDict()  # by key id
        self._writing: set[asyncio.Task[None]] = set()

    def record(self, key: ApiKeyRow, at: datetime) -> None:
        """Store `at` as the time at which the key was last used. The database is updated in the background,
        at most once a minute for each key.
        """
        last = max((time for time in (key.last_used_at, self._recorded.get(key.id)) if time), default=None)
        if last is not None and at - last < _RECORD_INTERVAL:
            return
        self._recorded[key.id] = at
        self._recorded.move_to_end(key.id)
        if len(self._recorded) > _MAX_RECORDED_KEYS:
            self._recorded.popitem(last=False)
        task = asyncio.create_task(self._write(key.id, at), name=RECORD_TASK)
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)
        task.add_done_callback(log_failure)

    async def _write(self, key_id: str, at: datetime) -> None:
        try:
            await self._keys.record_uses({key_id: at})
        except DatabaseUnavailable as error:  # the next use will be recorded
            logger.warning("use of a key was not recorded", extra={"key_id": key_id, "error": str(error)})
