"""Ends of responses that follow a batch: after a maximum duration, or when the process stops."""

from collections.abc import Callable

LIFETIME_SECONDS = 900.0  # then the client connects again, and its API key is checked again


class ApiShutdown:
    """Flag that is set once, when the API process begins to stop."""

    def __init__(self) -> None:
        self.is_set = False
        self._callbacks = list[Callable[[], None]]()

    def on_set(self, callback: Callable[[], None]) -> None:
        """Register a function to call when the flag is set. It is never called if the flag is already set."""
        self._callbacks.append(callback)

    def set(self) -> None:
        self.is_set = True
        for callback in self._callbacks:
            callback()
