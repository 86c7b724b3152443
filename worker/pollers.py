"""Poll the task queues of the models that live batches need.

The task queues contain slices (parts of a batch's lines). A live batch is a batch that has not ended.

`RequiredModels` finds these models. `PollerSupervisor` starts and stops a poller for each of their task
queues.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from datetime import timedelta
from typing import Protocol

from temporalio.service import RPCError
from temporalio.worker import Worker

from batchwright.database.errors import DatabaseUnavailable
from batchwright.temporal import TemporalConnection

logger = logging.getLogger(__name__)
IDLE_SECONDS = 120.0
REFRESH_SECONDS = 0.5  # maximum wait of a newly required model for its poller
_HEALTH_CHECK_TIMEOUT = timedelta(seconds=3)
_HEALTH_CHECK_INTERVAL_SECONDS = 0.5


class QueuePoller(Protocol):
    """A poller of one task queue that runs its activities. Temporalio's class Worker has the same methods."""

    async def run(self) -> None: ...

    async def shutdown(self) -> None: ...


PollerFactory = Callable[[], QueuePoller]


class QueueLimiter(Protocol):
    """An object that sets rate limits of task queues on the Temporal server, which applies the limits."""

    async def sync(self, polled: Collection[str]) -> None: ...


class UnlistedModels(Protocol):
    """The part of the registry that deletes the models that no backend offers and no batch needs."""

    def retain_unlisted(self, awaited: Collection[str]) -> None: ...


class RequiredModels:
    """The models that live batches need. The worker polls only the task queues of these models.

    Args:
        read: returns the models of the batches that send lines now.
        idle_seconds: how long a model stays required after `read` last returned it. So a poller still runs
            when the next batch needs the model.
        clock: returns the current time in seconds.
    """

    def __init__(
        self,
        read: Callable[[], Awaitable[Collection[str]]],
        idle_seconds: float = IDLE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read, self._idle, self._clock = read, idle_seconds, clock
        self._last_read: dict[str, float] = {}

    @property
    def models(self) -> list[str]:
        """Models that were required at the last `refresh`.

        The list begins with the models that the last `read` returned, in the order of that result. At the end
        are the models that only earlier calls of `read` returned, less than `idle_seconds` ago.
        """
        return [*self._last_read]

    async def refresh(self) -> None:
        """Read the models from the database. If it is unavailable, `models` stays unchanged."""
        try:
            models = await self._read()
        except DatabaseUnavailable:  # DependencyMonitor reports it
            return
        now = self._clock()
        seen = {
            **dict.fromkeys(models, now),
            **{model: self._last_read[model] for model in self._last_read.keys() - set(models)},
        }
        self._last_read = {model: at for model, at in seen.items() if now - at < self._idle or at == now}


class PollerSupervisor:
    """The supervisor of pollers: only the task queues of models that live batches need are polled.

    Args:
        pollers: starts the pollers, and stops them after their current work.
        create: called with the required models; returns for each task queue a function that creates the
            poller of the queue.
        required: the models that live batches need.
        limiter: sets the rate limit of a queue before the queue is polled.
        registry: deletes models that no live batch needs and no backend offers.
    """

    def __init__(
        self,
        pollers: "QueuePollers",
        create: Callable[[frozenset[str]], Mapping[str, PollerFactory]],
        *,
        required: RequiredModels,
        limiter: QueueLimiter,
        registry: UnlistedModels,
    ) -> None:
        self._pollers, self._create = pollers, create
        self._required, self._limiter, self._registry = required, limiter, registry

    async def run(
        self,
        *,
        only: Collection[str] = (),
        limit: int,
        until_ready: Callable[[], Awaitable[None]],
        every_seconds: float = REFRESH_SECONDS,
    ) -> None:
        """Poll the queues of the models that live batches need, forever.

        Args:
            only: models that this worker serves; empty for all models.
            limit: maximum number of polled models. Tenants can name any number of models. But each polled
                model costs a thread and a poll, and Temporal limits the polls of a namespace.
            until_ready: waits until the worker may send lines. Polling starts after this wait.
            every_seconds: pause before the models are read again.
        """
        await until_ready()
        while True:
            await self._required.refresh()
            models = self._required.models
            served = [model for model in models if not only or model in only]
            wanted = self._create(frozenset(served[:limit]))
            if wanted.keys() - set(self._pollers.queues):
                await self._limiter.sync(wanted.keys())
            self._pollers.set_queues(wanted)
            self._registry.retain_unlisted(models)
            await asyncio.sleep(every_seconds)


class QueuePollers:
    """The pollers of task queues, which are started, and stopped after their current work.

    A queue has at most one poller, because the SDK allows only one.
    """

    def __init__(self) -> None:
        self._running: dict[str, tuple[QueuePoller, asyncio.Task[None]]] = {}
        self._draining: dict[str, asyncio.Task[None]] = {}
        self._failures: asyncio.Queue[Exception] = asyncio.Queue()

    @property
    def queues(self) -> list[str]:
        return sorted(self._running)

    def set_queues(self, wanted: Mapping[str, PollerFactory]) -> None:
        """Start pollers for the queues in `wanted`, if they have none. Stop the pollers of all other queues.

        A poller stops in the background, after its current work. If the old poller of a queue in `wanted` has
        not stopped yet, this call starts no new poller for the queue. A later call does.

        Args:
            wanted: functions that create a poller, by task queue.
        """
        for queue in sorted(self._running.keys() - wanted.keys()):
            self._stop(queue)
        for queue in sorted(wanted.keys() - self._running.keys() - self._draining.keys()):
            poller = wanted[queue]()
            self._running[queue] = (poller, asyncio.create_task(self._run(poller)))
            logger.info("started polling a task queue", extra={"task_queue": queue})

    async def wait_for_failure(self) -> None:
        """Wait until any poller fails, and raise its exception."""
        raise await self._failures.get()

    async def shutdown(self) -> None:
        """Stop all pollers, and return when they have ended their current work."""
        for queue in self.queues:
            self._stop(queue)
        await asyncio.gather(*self._draining.values())

    async def _run(self, poller: QueuePoller) -> None:
        try:
            await poller.run()
        except Exception as error:  # any failure of a poller ends the process
            self._failures.put_nowait(error)

    def _stop(self, queue: str) -> None:
        poller, running = self._running.pop(queue)
        self._draining[queue] = asyncio.create_task(self._drain(queue, poller, running))
        logger.info("stopped polling a task queue", extra={"task_queue": queue})

    async def _drain(self, queue: str, poller: QueuePoller, running: asyncio.Task[None]) -> None:
        try:
            await poller.shutdown()
            await running
        except Exception as error:  # as in `_run`
            self._failures.put_nowait(error)
        finally:
            del self._draining[queue]


class ReconnectingWorker:
    """A Temporal worker that survives an unavailable server and a replaced connection.

    At the start, it waits for the server. When the connection is replaced by a new one, for example with
    another certificate, it uses the new connection, unless it is already stopping.
    """

    def __init__(self, worker: Worker, connection: TemporalConnection) -> None:
        self._worker, self._connection = worker, connection
        self._replacements = connection.replacements
        self._stopping = asyncio.Event()
        self._is_started = False

    async def run(self) -> None:
        """Wait until the server responds, then poll until `shutdown` is called.

        The wait is necessary: if the server is unreachable, the SDK's worker fails at its start, and cannot
        be started a second time. Errors of the SDK's worker are raised unchanged.
        """
        if not await self._wait_for_server():
            return
        self._is_started = True
        self._connection.on_replace.add(self._reconnect)
        if self._connection.replacements != self._replacements:
            self._reconnect()
        try:
            await self._worker.run()
        finally:
            self._connection.on_replace.discard(self._reconnect)

    async def shutdown(self) -> None:
        self._stopping.set()
        if not self._is_started:
            return
        # A worker that has shut down must not get a new connection: the SDK's core would abort the process.
        self._connection.on_replace.discard(self._reconnect)
        await self._worker.shutdown()

    async def _wait_for_server(self) -> bool:
        """Wait until the server responds, and return True. Return False if `shutdown` is called meanwhile."""
        is_logged = False
        while not self._stopping.is_set():
            try:
                await self._worker.client.service_client.check_health(timeout=_HEALTH_CHECK_TIMEOUT)
            except RPCError as error:
                if not is_logged:
                    logger.warning(
                        "a task queue is not polled yet: Temporal does not answer",
                        extra={"task_queue": self._worker.task_queue, "error": error.message},
                    )
                is_logged = True
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), _HEALTH_CHECK_INTERVAL_SECONDS)
            else:
                break
        return not self._stopping.is_set()  # `shutdown` stops no worker that has not started

    def _reconnect(self) -> None:
        try:
            self._worker.client = self._worker.client
        except ValueError as error:
            logger.error(
                "a task queue is still polled over the old connection to Temporal",
                extra={"task_queue": self._worker.task_queue, "error": str(error)},
            )
