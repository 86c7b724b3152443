"""Fake table of callbacks, which backends send when a job has ended, in memory."""

from collections.abc import Sequence
from datetime import datetime
from itertools import accumulate

from batchwright.database.tables.callbacks import CallbacksTable, ReceivedCallback, ReceivedCallbacks
from tests.fakes.tables.rows import Rows


class MemoryCallbacks(CallbacksTable):
    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self.reads: list[list[str]] = []  # ids of each query

    async def accept(self, id: str, body: bytes | None, size: int, expires_at: datetime) -> bool:
        called = self._rows.enter().callbacks
        if id in called or self._rows.clock() >= expires_at:
            return False
        called[id] = (ReceivedCallback(id, size, body), expires_at)
        return True

    async def is_received(self, id: str) -> bool:
        return id in self._rows.enter().callbacks

    async def get(self, ids: Sequence[str], max_bytes: int) -> ReceivedCallbacks:
        called = self._rows.enter().callbacks
        self.reads.append(list(ids))
        found = sorted((called[id][1], id, called[id][0]) for id in ids if id in called)
        received = [callback for _, _, callback in found if callback is not None]
        totals = accumulate(len(callback.body or b"") for callback in received)
        fitting = max(sum(total <= max_bytes for total in totals), 1)
        return ReceivedCallbacks(received[:fitting], len(received) > fitting)

    async def clear_bodies(self, ids: Sequence[str]) -> None:
        called = self._rows.enter().callbacks
        for id in ids:
            if id in called:
                called[id] = (None, called[id][1])

    async def delete_expired(self, before: datetime) -> None:
        called = self._rows.enter().callbacks
        self._rows.callbacks = {id: call for id, call in called.items() if call[1] >= before}
