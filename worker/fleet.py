"""The inference workers of a process, one a model, started and stopped as the registry changes."""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Protocol

logger = logging.getLogger(__name__)


class Polling(Protocol):
    """Of temporalio's Worker, what the fleet needs."""

    async def run(self) -> None: ...

    async def shutdown(self) -> None: ...


class Fleet:
    def __init__(self, make: Callable[[str], Polling], only: Iterable[str] = ()) -> None:
        """`only` names the models to serve; none: all there are."""
        self._make, self._only = make, frozenset(only)
        self._running: dict[str, tuple[Polling, asyncio.Task[None]]] = {}
        self._draining: dict[str, asyncio.Task[None]] = {}
        self._failures: asyncio.Queue[Exception] = asyncio.Queue()

    @property
    def models(self) -> list[str]:
        return sorted(self._running)

    async def follow(self, served: frozenset[str]) -> None:
        """Polls the queues of `served` and no others; a model that is gone drains on the side.

        One that is back before it has drained waits for that: the SDK allows one worker a queue.
        """
        wanted = served & self._only if self._only else served
        for model in sorted(self._running.keys() - wanted):
            self._retire(model)
        for model in sorted(
            wanted - self._running.keys(), key=lambda model: (model in self._draining, model)
        ):
            if model in self._draining:
                await self._draining[model]
            self._start(model)

    async def failed(self) -> None:
        """Raises what ended a worker that nobody stopped, as soon as there is one."""
        raise await self._failures.get()

    async def shutdown(self) -> None:
        for model in self.models:
            self._retire(model)
        await asyncio.gather(*self._draining.values())

    def _start(self, model: str) -> None:
        worker = self._make(model)
        self._running[model] = (worker, asyncio.create_task(self._run(worker)))
        logger.info("a model's queue is polled", extra={"model": model})

    async def _run(self, worker: Polling) -> None:
        try:
            await worker.run()
        except Exception as error:  # whatever it is, the process ends with it
            self._failures.put_nowait(error)

    def _retire(self, model: str) -> None:
        worker, running = self._running.pop(model)
        self._draining[model] = asyncio.create_task(self._drain(model, worker, running))
        logger.info("a model's queue is no longer polled", extra={"model": model})

    async def _drain(self, model: str, worker: Polling, running: asyncio.Task[None]) -> None:
        await worker.shutdown()
        await running
        del self._draining[model]
