"""Calls of backends, in memory."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime

from batchwright.database.callbacks_base import CallbacksTable, Told
from tests.fakes.rows import Rows


class MemoryCallbacks(CallbacksTable):
    """`is_deaf`: those who listen hear nothing, as behind a pooler."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._listeners: dict[asyncio.Event, Callable[[str], None]] = {}
        self.is_deaf = False
        self.reads: list[list[str]] = []  # what each query asked for

    async def accept(self, id: str, body: bytes | None, size: int, expires_at: datetime) -> bool:
        called = self._rows.enter().callbacks
        if id in called:
            return False
        called[id] = (Told(id, size, body), expires_at)
        self._tell(id)
        return True

    async def told(self, ids: Sequence[str]) -> list[Told]:
        called = self._rows.enter().callbacks
        self.reads.append(list(ids))
        found = [called[id][0] for id in ids if id in called]
        return [told for told in found if told is not None]

    @asynccontextmanager
    async def listening(self, heard: Callable[[str], None]) -> AsyncGenerator[asyncio.Event]:
        self._rows.enter()
        lost = asyncio.Event()
        self._listeners[lost] = heard
        try:
            yield lost
        finally:
            self._listeners.pop(lost, None)

    async def ring(self, word: str) -> None:
        self._rows.enter()
        self._tell(word)

    @property
    def connections(self) -> list[asyncio.Event]:
        """Those that listen now."""
        return list(self._listeners)

    def lose(self) -> None:
        """The connections of all that listen end."""
        for lost in self._listeners:
            lost.set()
        self._listeners.clear()

    def _tell(self, word: str) -> None:
        if not self.is_deaf:
            for heard in self._listeners.values():
                heard(word)

    async def empty(self, ids: Sequence[str]) -> None:
        called = self._rows.enter().callbacks
        for id in ids:
            if id in called:
                called[id] = (None, called[id][1])

    async def forget(self, before: datetime) -> None:
        called = self._rows.enter().callbacks
        self._rows.callbacks = {id: call for id, call in called.items() if call[1] >= before}
