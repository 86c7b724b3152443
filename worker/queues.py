"""What control workers show of Temporal's task queues: how much waits, since when, and who takes it."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import NamedTuple, Protocol

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client

from batchwright.contracts.names import CONTROL_QUEUE, DISPATCH_QUEUE, IO_QUEUE, inference_queue
from batchwright.rules.ids import safe_name
from batchwright.telemetry.metrics import Metrics

_RPC_TIMEOUT = timedelta(seconds=5)
_AT_ONCE = 8


class QueueState(NamedTuple):
    depth: int
    oldest_age_seconds: float
    pollers: int


class Queues(Protocol):
    async def describe(self, queue: str) -> QueueState:
        """Raises RPCError."""
        ...


class ServerQueues(Queues):
    """The real ones. The server sums over a queue's partitions and keeps the sum for some seconds itself."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def describe(self, queue: str) -> QueueState:
        workflows = TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW
        activities = TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY
        answer = await self._client.workflow_service.describe_task_queue(
            DescribeTaskQueueRequest(
                namespace=self._client.namespace,
                task_queue=TaskQueue(name=queue),
                task_queue_type=workflows if queue == CONTROL_QUEUE else activities,
                report_stats=True,
            ),
            timeout=_RPC_TIMEOUT,
        )
        stats = answer.stats
        age = stats.approximate_backlog_age.ToTimedelta().total_seconds()
        depth = stats.approximate_backlog_count
        return QueueState(depth, age if depth else 0.0, len(answer.pollers))


class QueueWatch:
    """Of the fixed queues and of every model that is served, or was served and has lines left."""

    def __init__(self, queues: Queues, served: Callable[[], frozenset[str]], metrics: Metrics) -> None:
        self._queues, self._served, self._metrics = queues, served, metrics

    async def look(self, with_lines_left: frozenset[str]) -> None:
        """Raises RPCError; what was shown stays."""
        models = self._served() | with_lines_left
        labels = [(CONTROL_QUEUE, ""), (IO_QUEUE, ""), (DISPATCH_QUEUE, "")]
        labels += [(inference_queue(safe_name(model)), model) for model in sorted(models)]
        gate = asyncio.Semaphore(_AT_ONCE)

        async def state(queue: str) -> QueueState:
            async with gate:
                return await self._queues.describe(queue)

        states = await asyncio.gather(*(state(queue) for queue, _ in labels))
        self._show(dict(zip(labels, states, strict=True)))

    def _show(self, states: dict[tuple[str, str], QueueState]) -> None:
        metrics = self._metrics
        for family in (metrics.queue_depth, metrics.queue_oldest_age, metrics.queue_pollers):
            family.clear()
        for labels, state in states.items():
            metrics.queue_depth.labels(*labels).set(state.depth)
            metrics.queue_oldest_age.labels(*labels).set(state.oldest_age_seconds)
            metrics.queue_pollers.labels(*labels).set(state.pollers)
