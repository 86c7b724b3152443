"""Limits of responses that follow a batch: their lifetime, and the stop of the process."""

from collections.abc import Callable

LIFETIME_SECONDS = 900.0  # a client then connects again, with an API key that is checked again


class StopSignal:
    """Set once, when the process begins to stop."""

    def __init__(self) -> None:
        self.is_set = False
        self._callbacks = list[Callable[[], None]]()

    def on_set(self, callback: Callable[[], None]) -> None:
        """Call `callback` when the signal is set, which must not be the case yet."""
        self._callbacks.append(callback)

    def set(self) -> None:
        self.is_set = True
        for callback in self._callbacks:
            callback()
