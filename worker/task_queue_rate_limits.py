"""Set rate limits of task queues on the Temporal server, from Batchwright's rate limits.

The task queues contain slices (parts of a batch's lines). Every worker that runs slices sets these limits,
and all workers set the same limits.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Collection
from datetime import timedelta
from typing import NamedTuple, Protocol

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest, UpdateTaskQueueConfigRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from batchwright.inference.limits.fleet_rate_limits import FleetRates
from batchwright.rules.limits.rate_allocation import Pacing
from batchwright.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)
IDENTITY = "batchwright"  # marks Batchwright's own limits; limits set by others are never removed
SYNC_SECONDS = 5.0
_CHECK_SECONDS = 60.0  # a limit is read again at the earliest after this time
_RPC_TIMEOUT = timedelta(seconds=5)
_ACTIVITIES = TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY


class QueueRateLimit(NamedTuple):
    turns_per_second: float
    is_ours: bool


class QueueRateLimits(Protocol):
    """An object that reads and sets rate limits of task queues.

    All methods raise RPCError if Temporal fails.
    """

    async def get(self, queue: str) -> QueueRateLimit | None: ...

    async def set(self, queue: str, turns_per_second: float | None) -> None:
        """Set how many activities of this queue may start per second; None removes the limit."""
        ...


class TemporalRateLimits(QueueRateLimits):
    """The rate limits of task queues on the Temporal server, which can be read and set."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def get(self, queue: str) -> QueueRateLimit | None:
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
        is_ours = found.metadata.update_identity == IDENTITY
        return QueueRateLimit(found.rate_limit.requests_per_second, is_ours)

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


class RateLimitSync:
    """The task that keeps the limits of task queues on the Temporal server equal to Batchwright's rates.

    If Batchwright has no rate for a queue, a limit that an operator has set on the server stays.
    """

    def __init__(
        self,
        rates: FleetRates,
        limits: QueueRateLimits,
        metrics: Metrics,
        *,
        every_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rates, self._limits, self._metrics = rates, limits, metrics
        self._every, self._clock = every_seconds, clock
        self._known: dict[str, tuple[float | None, float]] = {}  # by queue: its limit, when it was checked
        self._polled: Collection[str] | None = None
        self._last_error = ""
        self._lock = asyncio.Lock()

    async def run(self) -> None:
        """Set the limits on the server regularly, until cancelled."""
        while True:
            await self.sync()
            await asyncio.sleep(self._every)

    async def sync(self, polled: Collection[str] | None = None) -> None:
        """Read Batchwright's rates, and set or remove the limits on the server accordingly.

        - Each queue with a rate gets its limit.
        - If a queue has no rate, and this process polls the queue, a limit that Batchwright has set is
          removed. A limit that an operator has set stays.
        - If a queue has no rate, and this process does not poll it, its limit does not change.

        Failures are logged, and the next call tries again.

        Args:
            polled: queues that the process polls from now on. If `polled` is None, the queues of the last
                call with queues are used. If there was no such call, all queues count as polled.
        """
        async with self._lock:
            self._polled = self._polled if polled is None else frozenset(polled)
            await self._rates.try_refresh()
            queues = {
                queue: pacing
                for queue, pacing in self._rates.queues().items()
                if pacing or self._polled is None or queue in self._polled
            }
            gauge = self._metrics.rate
            gauge.clear()
            for model, queue, pacing in self._rates.in_effect():
                gauge.labels(model, queue).set(pacing.requests_per_second)
            results = await asyncio.gather(*(self._sync(queue, pacing) for queue, pacing in queues.items()))
            self._known = {queue: known for queue, known in self._known.items() if queue in queues}
            if all(results):
                self._last_error = ""

    async def _sync(self, queue: str, pacing: Pacing | None) -> bool:
        """Set or remove the server's limit of one queue. If a recent check found the right limit, do nothing.

        Return True on success, False if the server refused the change or did not respond.

        Args:
            queue: the task queue.
            pacing: the queue's rate; None if the queue has no rate.
        """
        wanted = pacing.turns_per_second if pacing else None
        known, checked_at = self._known.get(queue, (None, float("-inf")))
        if known == wanted and self._clock() - checked_at < _CHECK_SECONDS:
            return True
        try:
            await self._apply(queue, wanted)
        except RPCError as error:
            self._log_failure(error, is_limited=wanted is not None)
            return False
        self._known[queue] = (wanted, self._clock())
        return True

    async def _apply(self, queue: str, wanted: float | None) -> None:
        found = await self._limits.get(queue)
        if wanted is None:
            if found is not None and found.is_ours:
                await self._limits.set(queue, None)
                logger.info("task queue rate limit removed", extra={"queue": queue})
        # The server stores limits in single precision.
        elif found is None or not math.isclose(found.turns_per_second, wanted, rel_tol=1e-6):
            await self._limits.set(queue, wanted)
            logger.info("task queue rate limit set", extra={"queue": queue, "turns_per_second": wanted})

    def _log_failure(self, error: RPCError, *, is_limited: bool) -> None:
        """Log a failure to read or set a limit, but not the same failure twice in a row.

        If `is_limited` is False, the queue needs no limit, and nothing is logged.
        """
        if error.message == self._last_error or not is_limited:
            return
        self._last_error = error.message
        message = (
            "Temporal cannot limit task queues: turns keep their rates, but the total rate is not limited"
        )
        if error.status is RPCStatusCode.UNIMPLEMENTED:
            message += "; upgrade the Temporal server"
        logger.warning(message, extra={"error": error.message})
