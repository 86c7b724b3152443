"""A worker of Temporal's that follows when the connection of its client is replaced."""

import logging

from temporalio.worker import Worker

from batchwright.temporal import Connection

logger = logging.getLogger(__name__)


class FollowingWorker:
    """Polls from `run` to `shutdown`; what drains ends on the connection it has."""

    def __init__(self, worker: Worker, connection: Connection) -> None:
        self._worker, self._connection = worker, connection
        self._made_at = connection.replacements

    async def run(self) -> None:
        """Ends with the worker's own error, or after `shutdown`."""
        self._connection.replaced.add(self._follow)
        if self._connection.replacements != self._made_at:
            self._follow()
        try:
            await self._worker.run()
        finally:
            self._connection.replaced.discard(self._follow)

    async def shutdown(self) -> None:
        # A worker that has shut down must not be given a connection: the SDK's core ends the process.
        self._connection.replaced.discard(self._follow)
        await self._worker.shutdown()

    def _follow(self) -> None:
        try:
            self._worker.client = self._worker.client
        except ValueError as error:
            logger.error(
                "a task queue is still polled over the old connection to Temporal",
                extra={"task_queue": self._worker.task_queue, "error": str(error)},
            )
