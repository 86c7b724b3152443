"""The workers of a process's slice queues, started and stopped as the wanted queues change."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Protocol

logger = logging.getLogger(__name__)


class Polling(Protocol):
    """Of temporalio's Worker, what the fleet needs."""

    async def run(self) -> None: ...

    async def shutdown(self) -> None: ...


Make = Callable[[], Polling]


class Fleet:
    """One poller a task queue: the SDK allows no second one."""

    def __init__(self) -> None:
        self._running: dict[str, tuple[Polling, asyncio.Task[None]]] = {}
        self._draining: dict[str, asyncio.Task[None]] = {}
        self._failures: asyncio.Queue[Exception] = asyncio.Queue()

    @property
    def queues(self) -> list[str]:
        return sorted(self._running)

    async def follow(self, wanted: Mapping[str, Make]) -> None:
        """Polls these queues and no others; one that is no longer wanted drains on the side.

        One that is back before it has drained waits for that.
        """
        for queue in sorted(self._running.keys() - wanted.keys()):
            self._retire(queue)
        for queue in sorted(wanted.keys() - self._running.keys(), key=lambda q: (q in self._draining, q)):
            if queue in self._draining:
                await self._draining[queue]
            self._start(queue, wanted[queue])

    async def failed(self) -> None:
        """Raises what ended a poller that nobody stopped, as soon as there is one."""
        raise await self._failures.get()

    async def shutdown(self) -> None:
        for queue in self.queues:
            self._retire(queue)
        await asyncio.gather(*self._draining.values())

    def _start(self, queue: str, make: Make) -> None:
        worker = make()
        self._running[queue] = (worker, asyncio.create_task(self._run(worker)))
        logger.info("a task queue is polled", extra={"task_queue": queue})

    async def _run(self, worker: Polling) -> None:
        try:
            await worker.run()
        except Exception as error:  # whatever it is, the process ends with it
            self._failures.put_nowait(error)

    def _retire(self, queue: str) -> None:
        worker, running = self._running.pop(queue)
        self._draining[queue] = asyncio.create_task(self._drain(queue, worker, running))
        logger.info("a task queue is no longer polled", extra={"task_queue": queue})

    async def _drain(self, queue: str, worker: Polling, running: asyncio.Task[None]) -> None:
        await worker.shutdown()
        await running
        del self._draining[queue]
