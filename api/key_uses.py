"""When keys were used last: written beside the requests, which neither wait for it nor fail with it."""

import asyncio
import logging
from collections import OrderedDict
from datetime import datetime, timedelta

from batchwright.database.errors import DatabaseUnavailable
from batchwright.database.tenant_rows import KeyRow
from batchwright.database.tenants_base import ApiKeysTable

logger = logging.getLogger(__name__)

_APART = timedelta(minutes=1)
_MOST_KEYS = 10_000


class KeyUses:
    def __init__(self, keys: ApiKeysTable) -> None:
        self._keys = keys
        self._noted: OrderedDict[str, datetime] = OrderedDict()  # by id
        self._writing: set[asyncio.Task[None]] = set()

    def note(self, key: KeyRow, at: datetime) -> None:
        """Starts to write it, unless a use less than a minute ago is known."""
        last = max((time for time in (key.last_used_at, self._noted.get(key.id)) if time), default=None)
        if last is not None and at - last < _APART:
            return
        self._noted[key.id] = at
        self._noted.move_to_end(key.id)
        if len(self._noted) > _MOST_KEYS:
            self._noted.popitem(last=False)
        task = asyncio.create_task(self._write(key.id, at))
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)

    async def written(self) -> None:
        """Once all that was noted is written, or could not be."""
        await asyncio.gather(*self._writing)

    async def _write(self, key_id: str, at: datetime) -> None:
        try:
            await self._keys.note_used({key_id: at})
        except DatabaseUnavailable as error:  # the next use in a minute tells again
            logger.warning("a key's last use was not noted", extra={"key_id": key_id, "error": str(error)})
