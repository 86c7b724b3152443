"""Ends of responses that follow a batch: after a maximum duration, or when the process stops."""

from collections.abc import Callable

LIFETIME_SECONDS = 900.0  # then the client connects again, and its API key is checked again


class ApiShutdown:
    """Signal that is set once, when the process begins to stop."""

    def __init__(self) -> None:
        self.is_set = False
        self._callbacks = list[Callable[[], None]]()

    def on_set(self, callback: Callable[[], None]) -> None:
        """Call `callback` when the signal is set later. If it is already set, never call `callback`."""
        self._callbacks.append(callback)

    def set(self) -> None:
        self.is_set = True
        for callback in self._callbacks:
            callback()
