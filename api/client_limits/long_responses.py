"""Ends long responses, such as event streams, when the process stops. Defines their maximum duration."""

import asyncio
from collections.abc import Callable

LIFETIME_SECONDS = 900.0  # then the client connects again, and its API key is checked again
_LAST_SECONDS = 1.0  # end of the drain time, kept free to send the ends of responses


class ShutdownStage:
    """A stage of the process's shutdown. When the stage begins, it calls all functions that were registered
    with `on_set`.
    """

    def __init__(self) -> None:
        self.is_set = False
        self._callbacks = list[Callable[[], None]]()

    def on_set(self, callback: Callable[[], None]) -> None:
        """Register a function to call when the stage begins. If the stage has already begun, the function is
        never called.
        """
        self._callbacks.append(callback)

    def _set(self) -> None:
        self.is_set = True
        for callback in self._callbacks:
            callback()


class ApiShutdown(ShutdownStage):
    """The first stage of the shutdown. It begins as soon as the process begins to shut down.

    Attributes:
        drained: the second stage. It begins shortly before the process cuts the connections that are still
            open.
    """

    def __init__(self) -> None:
        super().__init__()
        self.drained = ShutdownStage()

    def set(self, drain_seconds: float = 0.0) -> None:
        """Begin this stage now. Begin the stage `drained` later, shortly before the process cuts open
        connections.

        Call this in the event loop.

        Args:
            drain_seconds: seconds from now until the process cuts open connections. `drained` begins one
                second earlier. If `drain_seconds` is below 4, `drained` begins after 75 % of `drain_seconds`.
        """
        self._set()
        left = drain_seconds - min(_LAST_SECONDS, drain_seconds / 4)
        asyncio.get_running_loop().call_later(left, self.drained._set)
