"""Calls of backends, in memory."""

from collections.abc import Sequence
from datetime import datetime

from batchwright.database.callbacks_base import CallbacksTable, Told
from tests.fakes.rows import Rows


class MemoryCallbacks(CallbacksTable):
    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    async def accept(self, id: str, body: bytes | None, size: int, expires_at: datetime) -> bool:
        called = self._rows.enter().callbacks
        if id in called:
            return False
        called[id] = (Told(id, size, body), expires_at)
        return True

    async def told(self, ids: Sequence[str]) -> list[Told]:
        called = self._rows.enter().callbacks
        found = [called[id][0] for id in ids if id in called]
        return [told for told in found if told is not None]

    async def empty(self, ids: Sequence[str]) -> None:
        called = self._rows.enter().callbacks
        for id in ids:
            if id in called:
                called[id] = (None, called[id][1])

    async def forget(self, before: datetime) -> None:
        called = self._rows.enter().callbacks
        self._rows.callbacks = {id: call for id, call in called.items() if call[1] >= before}
