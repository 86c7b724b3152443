"""What ends a response that follows a batch: the maximum duration, and the stop of the process."""

from collections.abc import Callable

LIFETIME_SECONDS = 900.0  # then the client connects again, and its API key is checked again


class StopSignal:
    """Signal that is set once, when the process begins to stop."""

    def __init__(self) -> None:
        self.is_set = False
        self._callbacks = list[Callable[[], None]]()

    def on_set(self, callback: Callable[[], None]) -> None:
        """Call `callback` when the signal is set. If it was set before, `callback` is never called."""
        self._callbacks.append(callback)

    def set(self) -> None:
        self.is_set = True
        for callback in self._callbacks:
            callback()
