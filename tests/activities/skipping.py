"""An event loop on which no pause takes time: while all tasks sleep, it is later at once."""

import asyncio
import selectors
import time
from collections.abc import Callable

# Before any test puts a loop's clocks in their place.
_MONOTONIC, _WALL = time.monotonic, time.time


class _Selector(selectors.DefaultSelector):
    """Answers at once, as if it had waited; `slept` takes the seconds."""

    def __init__(self, slept: Callable[[float], None]) -> None:
        super().__init__()
        self._slept = slept

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:  # nothing but another thread could wake it
            return super().select()
        if not (ready := super().select(0)):
            self._slept(timeout)
        return ready


class SkippingLoop(asyncio.SelectorEventLoop):
    """For code that neither waits for sockets nor for threads: these take time that it would not let pass."""

    def __init__(self) -> None:
        self._skipped = 0.0
        super().__init__(_Selector(self._skip))

    def time(self) -> float:
        return _MONOTONIC() + self._skipped

    def wall(self) -> float:
        """What `time.time` says of it."""
        return _WALL() + self._skipped

    def _skip(self, seconds: float) -> None:
        self._skipped += seconds
