"""Keys as the API knows them: looked up, and for a moment remembered."""

import time
from collections import OrderedDict
from collections.abc import Callable
from datetime import datetime
from typing import NamedTuple

from batchwright.database.tenant_rows import FoundKey, KeyRow
from batchwright.database.tenants_base import ApiKeysTable
from batchwright.rules.api_keys import ApiKey, opens

FRESH_SECONDS = 2.0  # how long a revoked key may still open
MOST_KEYS = 10_000  # beyond, the one that was proven longest ago is forgotten


class _Proven(NamedTuple):
    found: FoundKey
    at: float


class Keyring:
    """Every refusal has asked the database and compared a hash, whether or not there is such a key."""

    def __init__(
        self,
        keys: ApiKeysTable,
        clock: Callable[[], datetime],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._keys = keys
        self._clock = clock
        self._monotonic = monotonic
        self._proven: OrderedDict[str, _Proven] = OrderedDict()

    async def row_of(self, key: ApiKey) -> KeyRow | None:
        """None where it opens nothing, whatever the reason. Raises DatabaseUnavailable."""
        proven = self._proven.get(key.prefix)
        if proven and self._monotonic() - proven.at < FRESH_SECONDS and self._is_good(key, proven.found):
            return proven.found.key
        asked_at = self._monotonic()
        found = await self._keys.find(key.prefix)
        if not self._is_good(key, found) or found is None:
            if self.has_proven(key):
                self._proven.pop(key.prefix, None)
            return None
        self._proven[key.prefix] = _Proven(found, asked_at)
        self._proven.move_to_end(key.prefix)
        if len(self._proven) > MOST_KEYS:
            self._proven.popitem(last=False)
        return found.key

    def has_proven(self, key: ApiKey) -> bool:
        """Whether it was good when it was looked up last."""
        proven = self._proven.get(key.prefix)
        return proven is not None and opens(key, proven.found.kept)

    def _is_good(self, key: ApiKey, found: FoundKey | None) -> bool:
        is_right = opens(key, None if found is None else found.kept)
        return is_right and found is not None and found.is_usable(self._clock())
