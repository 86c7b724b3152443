"""Keeps the server's limits on the slices' queues at the rates in effect; every worker does it."""

import asyncio
import logging
import math
import time
from collections.abc import Callable
from datetime import timedelta
from typing import NamedTuple, Protocol

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest, UpdateTaskQueueConfigRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from batchwright.inference.rates import FleetRates
from batchwright.rules.rates import Pacing
from batchwright.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)
IDENTITY = "batchwright"  # marks a limit as ours: others are never taken away
_CHECK_SECONDS = 60.0  # how long a limit is taken to be as it was left
_RPC_TIMEOUT = timedelta(seconds=5)
_ACTIVITIES = TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY


class Limit(NamedTuple):
    turns_per_second: float
    is_ours: bool


class Limits(Protocol):
    """The server's limits on queues. All methods raise RPCError."""

    async def get(self, queue: str) -> Limit | None: ...

    async def set(self, queue: str, turns_per_second: float | None) -> None: ...


class ServerLimits(Limits):
    """The real ones."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def get(self, queue: str) -> Limit | None:
        described = await self._client.workflow_service.describe_task_queue(
            DescribeTaskQueueRequest(
                namespace=self._client.namespace,
                task_queue=TaskQueue(name=queue),
                task_queue_type=_ACTIVITIES,
                report_config=True,
            ),
            timeout=_RPC_TIMEOUT,
        )
        found = described.config.queue_rate_limit
        if not found.HasField("rate_limit"):
            return None
        return Limit(found.rate_limit.requests_per_second, found.metadata.update_identity == IDENTITY)

    async def set(self, queue: str, turns_per_second: float | None) -> None:
        update = UpdateTaskQueueConfigRequest.RateLimitUpdate(reason=IDENTITY)
        if turns_per_second is not None:
            update.rate_limit.requests_per_second = turns_per_second
        request = UpdateTaskQueueConfigRequest(
            namespace=self._client.namespace,
            identity=IDENTITY,
            task_queue=queue,
            task_queue_type=_ACTIVITIES,
            update_queue_rate_limit=update,
        )
        await self._client.workflow_service.update_task_queue_config(request, timeout=_RPC_TIMEOUT)


class RateKeeper:
    """A limit that an operator set by hand stays as long as no rate of ours is in effect for its queue."""

    def __init__(
        self,
        rates: FleetRates,
        limits: Limits,
        metrics: Metrics,
        *,
        every_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rates, self._limits, self._metrics = rates, limits, metrics
        self._every, self._clock = every_seconds, clock
        self._kept: dict[str, tuple[float | None, float]] = {}  # queue: limit, when it was so
        self._complaint = ""
        self._working = asyncio.Lock()

    async def run(self) -> None:
        """Keeps for ever."""
        while True:
            await self.keep()
            await asyncio.sleep(self._every)

    async def keep(self) -> None:
        """Looks at the rates and has the server's limits follow; what fails is logged and tried again."""
        async with self._working:
            await self._rates.look()
            queues = self._rates.queues()
            self._show()
            tried = await asyncio.gather(*(self._try(queue, pacing) for queue, pacing in queues.items()))
            self._kept = {queue: kept for queue, kept in self._kept.items() if queue in queues}
            if all(tried):
                self._complaint = ""

    async def _try(self, queue: str, pacing: Pacing | None) -> bool:
        wanted = pacing.turns_per_second if pacing else None
        kept, at = self._kept.get(queue, (None, float("-inf")))
        if kept == wanted and self._clock() - at < _CHECK_SECONDS:
            return True
        try:
            await self._follow(queue, wanted)
        except RPCError as error:
            self._complain(error, is_limited=wanted is not None)
            return False
        self._kept[queue] = (wanted, self._clock())
        return True

    async def _follow(self, queue: str, wanted: float | None) -> None:
        found = await self._limits.get(queue)
        if wanted is None:
            if found is not None and found.is_ours:
                await self._limits.set(queue, None)
                logger.info("a queue's limit is lifted", extra={"queue": queue})
        # The server keeps single precision.
        elif found is None or not math.isclose(found.turns_per_second, wanted, rel_tol=1e-6):
            await self._limits.set(queue, wanted)
            logger.info("a queue's limit is set", extra={"queue": queue, "turns_per_second": wanted})

    def _complain(self, error: RPCError, *, is_limited: bool) -> None:
        """Once for each thing that is wrong; and not where nothing is to be limited."""
        if error.message == self._complaint or not is_limited:
            return
        self._complaint = error.message
        message = "Temporal limits no task queue: turns keep their pace, but nothing limits the fleet"
        if error.status is RPCStatusCode.UNIMPLEMENTED:
            message += "; it takes a newer server"
        logger.warning(message, extra={"error": error.message})

    def _show(self) -> None:
        gauge = self._metrics.rate
        gauge.clear()
        for model, queue, pacing in self._rates.in_effect():
            gauge.labels(model, queue).set(pacing.requests_per_second)


def keeper_of(client: Client, rates: FleetRates, metrics: Metrics, every_seconds: float) -> RateKeeper:
    """The one of a worker's process."""
    return RateKeeper(rates, ServerLimits(client), metrics, every_seconds=every_seconds)
