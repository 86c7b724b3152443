"""The inference workers of a process, one a model, started and stopped as the registry changes."""

import asyncio
import logging
from collections.abc import Callable, Iterable

from temporalio.worker import Worker

logger = logging.getLogger(__name__)


class Fleet:
    def __init__(self, make: Callable[[str], Worker], only: Iterable[str] = ()) -> None:
        """`only` names the models to serve; none: all there are."""
        self._make, self._only = make, frozenset(only)
        self._running: dict[str, tuple[Worker, asyncio.Task[None]]] = {}

    @property
    def models(self) -> list[str]:
        return sorted(self._running)

    async def follow(self, served: frozenset[str]) -> None:
        """Polls the queues of `served` and no others; a model that is gone drains first."""
        wanted = served & self._only if self._only else served
        for model in sorted(wanted - self._running.keys()):
            worker = self._make(model)
            self._running[model] = (worker, asyncio.create_task(worker.run()))
            logger.info("a model's queue is polled", extra={"model": model})
        for model in sorted(self._running.keys() - wanted):
            worker, task = self._running.pop(model)
            logger.info("a model's queue is no longer polled", extra={"model": model})
            await worker.shutdown()
            await task

    def failed(self) -> BaseException | None:
        """What ended a worker that nobody stopped."""
        ended = (task for _, task in self._running.values() if task.done() and not task.cancelled())
        return next((error for task in ended if (error := task.exception())), None)

    async def shutdown(self) -> None:
        workers, self._running = list(self._running.values()), {}
        await asyncio.gather(*(worker.shutdown() for worker, _ in workers))
        await asyncio.gather(*(task for _, task in workers), return_exceptions=True)
