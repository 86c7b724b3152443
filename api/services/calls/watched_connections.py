"""Watches connections of clients that wait for answers, until the client disconnects or the process stops."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from starlette.types import Receive

from batchwright.api.client_limits.long_responses import ShutdownStage
from batchwright.api.errors import RETRY_AFTER_SECONDS, ApiError


class WatchedConnections:
    """An observer of client connections. With it, a call can end early if its client disconnects or the
    process stops.
    """

    def __init__(self, stopping: ShutdownStage) -> None:
        """Create an observer that watches no connection yet.

        Args:
            stopping: stage of the process's shutdown. When the process enters this stage, all tasks that
                `watched` has yielded are cancelled. Each of these tasks would otherwise run until its client
                disconnects. When the task is cancelled, the code that answers the client sends an error.
        """
        self._stopping = stopping
        self._watches = set[asyncio.Task[None]]()
        stopping.on_set(self._end_all)

    @property
    def have_ended(self) -> bool:
        """True if the process is stopping. Clients must then no longer wait, even if they are still
        connected.
        """
        return self._stopping.is_set

    @asynccontextmanager
    async def watched(self, receive: Receive) -> AsyncGenerator[asyncio.Task[None]]:
        """Context manager that yields a task, which ends when the client disconnects. If the process stops,
        the task is cancelled.

        Args:
            receive: ASGI function that returns the next message of the client, after its whole body.

        Raises:
            ApiError: the process is already stopping (503).
        """
        if self.have_ended:
            raise stopping_error()
        watch = asyncio.create_task(_until_disconnect(receive))
        self._watches.add(watch)
        try:
            yield watch
        finally:
            self._watches.discard(watch)
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)

    def _end_all(self) -> None:
        for watch in self._watches:
            watch.cancel()


def stopping_error() -> ApiError:
    message = (
        "This API process is stopping. Send the same request again, with the same Idempotency-Key if any."
    )
    return ApiError(503, message, headers={"Retry-After": str(RETRY_AFTER_SECONDS)})


async def _until_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
