"""Reads statistics of Temporal's task queues, and the time of Temporal's server."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from secrets import token_hex

from temporalio.api.enums.v1 import RateLimitSource, TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import (
    DescribeTaskQueueRequest,
    DescribeTaskQueueResponse,
    PollActivityTaskQueueRequest,
)
from temporalio.client import Client
from temporalio.service import RPCError

from batchwright.contracts.temporal_names import CONTROL_QUEUE

_RPC_TIMEOUT = timedelta(seconds=5)
_CLOCK_SECONDS = 5.0


@dataclass(frozen=True)
class QueueReport:
    """Statistics of one task queue.

    Attributes:
        backlog: approximate number of waiting tasks.
        oldest_seconds: age of the oldest waiting task, in seconds.
        pollers: number of pollers of all workers together. A poller fetches tasks from the queue.
        limit: configured limit of activity starts per second; None if there is no limit.
    """

    name: str
    backlog: int
    oldest_seconds: float
    pollers: int
    limit: float | None


DescribeQueue = Callable[[str], Awaitable[QueueReport]]  # raises RPCError


async def describe_queue(client: Client, queue: str) -> QueueReport:
    """Return the statistics of a task queue. Raises RPCError if the call fails.

    For the queue `control`, which workflows use, workflow tasks are counted. For all other queues, activity
    tasks are counted.
    """
    found = await _describe(client, queue)
    stats, effective = found.stats, found.effective_rate_limit
    ours = effective.rate_limit_source != RateLimitSource.RATE_LIMIT_SOURCE_SYSTEM
    limited = found.HasField("effective_rate_limit") and ours
    waiting = stats.approximate_backlog_count
    return QueueReport(
        name=queue,
        backlog=waiting,
        oldest_seconds=stats.approximate_backlog_age.ToTimedelta().total_seconds() if waiting else 0.0,
        pollers=len(found.pollers),
        limit=effective.requests_per_second if limited else None,
    )


async def server_time(client: Client) -> datetime | None:
    """Return the time of Temporal's server, at most half a second old. Return None if the time cannot be
    read.

    Temporal has no call that returns its time. But when a worker polls a task queue, Temporal records the
    time. So this function polls a new task queue for at most 5 s, and returns the recorded time. Raises
    RPCError if the recorded time cannot be requested.
    """
    queue = f"batchwright-clock-{token_hex(8)}"
    request = PollActivityTaskQueueRequest(
        namespace=client.namespace, task_queue=TaskQueue(name=queue), identity="batchwright doctor"
    )
    polling = asyncio.create_task(
        client.workflow_service.poll_activity_task_queue(request, timeout=timedelta(seconds=_CLOCK_SECONDS))
    )
    try:
        while not polling.done():
            found = await _describe(client, queue)
            if found.pollers:
                return found.pollers[0].last_access_time.ToDatetime(UTC)
            await asyncio.sleep(0.05)
    finally:
        polling.cancel()
        with suppress(asyncio.CancelledError, RPCError):
            await polling
    return None


async def _describe(client: Client, queue: str) -> DescribeTaskQueueResponse:
    workflows = TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW
    activities = TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY
    request = DescribeTaskQueueRequest(
        namespace=client.namespace,
        task_queue=TaskQueue(name=queue),
        task_queue_type=workflows if queue == CONTROL_QUEUE else activities,
        report_stats=True,
        report_config=True,
    )
    return await client.workflow_service.describe_task_queue(request, timeout=_RPC_TIMEOUT)
