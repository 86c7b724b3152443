"""An event loop with its own clock, in which waiting takes no real time."""

import asyncio
import selectors
import time
from collections.abc import Callable

# The real clocks, before a test replaces them.
_MONOTONIC, _WALL, _GETTIME = time.monotonic, time.time, time.clock_gettime
_ROUND_SECONDS = 0.00005  # what a round of the loop takes by its clock


class _Selector(selectors.DefaultSelector):
    """A selector that does not wait. It passes the seconds for which it should have waited to `slept`."""

    def __init__(self, slept: Callable[[float], None]) -> None:
        super().__init__()
        self._slept = slept

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._slept(_ROUND_SECONDS)
        if timeout is None:  # nothing but another thread could wake it
            return super().select()
        if not (ready := super().select(0)):
            self._slept(timeout)
        return ready


class SkippingLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer instead of waiting for it.

    Its time depends only on what the code does, never on the speed of the machine. It is not suited to code
    that waits for sockets or threads, because the clock does not wait for them.
    """

    def __init__(self) -> None:
        self._began, self._wall_began, self._skipped = _MONOTONIC(), _WALL(), 0.0
        super().__init__(_Selector(self._skip))

    def time(self) -> float:
        return self._began + self._skipped

    def monotonic(self) -> float:
        """Return the loop's time, in place of `time.monotonic`. Other event loops get the real time."""
        return _MONOTONIC() if self._is_called_by_another_loop() else self.time()

    def wall(self) -> float:
        """Return the loop's time as Unix seconds, in place of `time.time`. Other event loops get the real
        time.
        """
        return _WALL() if self._is_called_by_another_loop() else self._wall_began + self._skipped

    def clock_gettime(self, clock: int) -> float:
        """Return the loop's time, in place of `time.clock_gettime`. Other event loops get the real time."""
        return _GETTIME(clock) if self._is_called_by_another_loop() else self.time()

    def _is_called_by_another_loop(self) -> bool:
        try:
            return asyncio.get_running_loop() is not self
        except RuntimeError:  # a thread without an event loop works for this loop
            return False

    def _skip(self, seconds: float) -> None:
        self._skipped += seconds
