"""A worker of Temporal's that follows when the connection of its client is replaced."""

import asyncio
import contextlib
import logging
from datetime import timedelta

from temporalio.service import RPCError
from temporalio.worker import Worker

from batchwright.temporal import Connection

logger = logging.getLogger(__name__)
_PATIENCE = timedelta(seconds=3)
_AGAIN_SECONDS = 0.5


class FollowingWorker:
    """Polls from `run` to `shutdown`; what drains ends on the connection it has."""

    def __init__(self, worker: Worker, connection: Connection) -> None:
        self._worker, self._connection = worker, connection
        self._made_at = connection.replacements
        self._stopping = asyncio.Event()
        self._has_begun = False

    async def run(self) -> None:
        """Begins when the server answers; ends with the worker's own error, or after `shutdown`.

        The SDK's worker would fail at a server that is away, and cannot be run or made again.
        """
        if not await self._answered():
            return
        self._has_begun = True
        self._connection.replaced.add(self._follow)
        if self._connection.replacements != self._made_at:
            self._follow()
        try:
            await self._worker.run()
        finally:
            self._connection.replaced.discard(self._follow)

    async def shutdown(self) -> None:
        self._stopping.set()
        if not self._has_begun:
            return
        # A worker that has shut down must not be given a connection: the SDK's core ends the process.
        self._connection.replaced.discard(self._follow)
        await self._worker.shutdown()

    async def _answered(self) -> bool:
        """False where it was told to stop before the server answered."""
        is_told = False
        while not self._stopping.is_set():
            try:
                await self._worker.client.service_client.check_health(timeout=_PATIENCE)
            except RPCError as error:
                if not is_told:
                    logger.warning(
                        "a task queue is not polled yet: Temporal does not answer",
                        extra={"task_queue": self._worker.task_queue, "error": error.message},
                    )
                is_told = True
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), _AGAIN_SECONDS)
            else:
                return True
        return False

    def _follow(self) -> None:
        try:
            self._worker.client = self._worker.client
        except ValueError as error:
            logger.error(
                "a task queue is still polled over the old connection to Temporal",
                extra={"task_queue": self._worker.task_queue, "error": str(error)},
            )
