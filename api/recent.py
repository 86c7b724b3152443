"""What was read a moment ago: polls of many batches do not read it again each time."""

import time
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")
_MOST = 10_000


class Recent(Generic[Key, Value]):
    """Values by key, each at most `seconds` old. What `read` raises is raised, and not kept."""

    def __init__(
        self,
        read: Callable[[Key], Awaitable[Value]],
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read, self._seconds, self._clock = read, seconds, clock
        self._kept: dict[Key, tuple[float, Value]] = {}

    async def get(self, key: Key) -> Value:
        read_at, value = self._kept.get(key, (0.0, None))
        now = self._clock()
        if value is not None and now - read_at < self._seconds:
            return value
        value = await self._read(key)
        if len(self._kept) >= _MOST:
            self._kept.clear()
        self._kept[key] = (now, value)
        return value
