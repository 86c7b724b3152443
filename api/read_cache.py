"""Short-lived cache for data that many requests read. Concurrent reads of the same key share one read."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Hashable
from functools import partial
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")
_MAX_ENTRIES = 10_000
_REFRESH_AFTER = 0.5  # fraction of a value's lifetime after which it is refreshed in the background


class CoalescingCache(Generic[Key, Value]):
    """A cache that reads missing values with the function `read`, and keeps each value for `seconds`.
    Exceptions of `read` are not cached.

    In the second half of a value's lifetime, `get` returns the value immediately and starts a new `read` in
    the background. So callers rarely have to wait.
    """

    def __init__(
        self,
        read: Callable[[Key], Coroutine[None, None, Value]],
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read, self._seconds, self._clock = read, seconds, clock
        self._values: dict[Key, tuple[float, Value]] = {}
        self._reading: dict[Key, tuple[float, asyncio.Task[Value]]] = {}

    async def get(self, key: Key) -> Value:
        """Return the cached value of the key. If there is none, call `read` and return its result.

        If several callers need the same key at the same time, `read` is called only once, and all wait for
        it. Exceptions of `read` are raised.
        """
        now = self._clock()
        read_at, value = self._values.get(key, (0.0, None))
        age = now - read_at
        if value is not None and age < self._seconds * _REFRESH_AFTER:
            return value
        reading = self._running_read(key, now)
        if value is not None and age < self._seconds:
            return value
        return await asyncio.shield(reading)  # a cancelled caller must not cancel the read for others

    def _running_read(self, key: Key, now: float) -> "asyncio.Task[Value]":
        """Return the running task that reads the value of this key.

        If no task is running, start a task. If the running task takes longer than the cache keeps a value,
        start a new task, because the value of the running task will be too old.
        """
        started_at, reading = self._reading.get(key, (0.0, None))
        if reading is None or now - started_at >= self._seconds:
            reading = asyncio.create_task(self._refresh(key, now))
            self._reading[key] = now, reading
            reading.add_done_callback(partial(self._finished, key))
        return reading

    async def _refresh(self, key: Key, now: float) -> Value:
        value = await self._read(key)
        if len(self._values) >= _MAX_ENTRIES:
            self._values.clear()
        self._values[key] = (now, value)
        return value

    def _finished(self, key: Key, reading: asyncio.Task[Value]) -> None:
        if self._reading.get(key, (0.0, None))[1] is reading:
            del self._reading[key]
        if not reading.cancelled():
            reading.exception()  # retrieved here, because it is possible that no caller waits for it
