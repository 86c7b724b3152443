"""What was read a moment ago: polls of many batches do not read it again each time."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Hashable
from functools import partial
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")
_MOST = 10_000
_STILL_YOUNG = 0.5  # of its life; after it the next one is read while this one is used


class Recent(Generic[Key, Value]):
    """Values by key, each at most `seconds` old. What `read` raises is raised, and not kept.

    Whoever asks often waits for none but the first.
    """

    def __init__(
        self,
        read: Callable[[Key], Coroutine[None, None, Value]],
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read, self._seconds, self._clock = read, seconds, clock
        self._kept: dict[Key, tuple[float, Value]] = {}
        self._reading: dict[Key, tuple[float, asyncio.Task[Value]]] = {}

    async def get(self, key: Key) -> Value:
        """Whoever asks while it is read waits for that: polls that come at once ask the database once."""
        now = self._clock()
        read_at, value = self._kept.get(key, (0.0, None))
        age = now - read_at
        if value is not None and age < self._seconds * _STILL_YOUNG:
            return value
        reading = self._reading_of(key, now)
        if value is not None and age < self._seconds:
            return value
        return await asyncio.shield(reading)  # one that leaves does not take it from the others

    def _reading_of(self, key: Key, now: float) -> "asyncio.Task[Value]":
        """The one that is under way; one that takes longer than a value lives is not waited for."""
        began_at, reading = self._reading.get(key, (0.0, None))
        if reading is None or now - began_at >= self._seconds:
            reading = asyncio.create_task(self._read_anew(key, now))
            self._reading[key] = now, reading
            reading.add_done_callback(partial(self._ended, key))
        return reading

    async def _read_anew(self, key: Key, now: float) -> Value:
        value = await self._read(key)
        if len(self._kept) >= _MOST:
            self._kept.clear()
        self._kept[key] = (now, value)
        return value

    def _ended(self, key: Key, reading: asyncio.Task[Value]) -> None:
        if self._reading.get(key, (0.0, None))[1] is reading:
            del self._reading[key]
        if not reading.cancelled():
            reading.exception()  # told to whoever waits, if anybody still does
