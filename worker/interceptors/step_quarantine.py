"""Quarantine of steps: find steps that crash their workers, run them one at a time, and fail them.

A step is an activity that handles whole inputs or results, such as the ingestion of a batch. Some inputs may
crash each worker that handles them, for example because they need too much memory. Without a quarantine,
Temporal would give the step to one worker after the other until its timeout.

After two crashes, the step is quarantined. To find the cause of a crash, a process runs only one quarantined
step or quarantined line at a time. All other quarantined steps and lines of the process wait, maybe for
minutes. After three crashes in quarantine, the step fails. If the worker crashes while the step still waits,
this crash is not one of the three, because the step did not run.

A step that waits sends heartbeats, can be cancelled, and keeps its slot. A slice that waits returns its
memory, and the worker takes other slices meanwhile.

`step_crashes` says which ends of an attempt count as crashes. Slices are not quarantined as a whole: they
quarantine single lines (`slice_state/line_quarantine.py`).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta

from temporalio import activity
from temporalio.client import AsyncActivityCancelledError
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import (
    ActivityInboundInterceptor,
    ActivityOutboundInterceptor,
    ExecuteActivityInput,
    Interceptor,
)

from batchwright.activities.errors import failure
from batchwright.activities.heartbeat import failure_count_details, heartbeating, previous_failures
from batchwright.contracts.errors import Failure
from batchwright.worker.interceptors.attempt_history import (
    CRASHES_BEFORE_QUARANTINE,
    StepCrashes,
    step_crashes,
)

logger = logging.getLogger(__name__)

MAX_QUARANTINED_CRASHES = 3
_ACKNOWLEDGE_TIMEOUT = timedelta(seconds=5)
_POLL_SECONDS = 0.1

# Sends a heartbeat with these details, and returns when the server has acknowledged it.
AcknowledgedHeartbeat = Callable[[Sequence[object]], Awaitable[None]]


async def send_heartbeat(details: Sequence[object]) -> None:
    """Send a heartbeat of the running activity to Temporal, and wait until Temporal has acknowledged it.

    Raises:
        ApplicationError (OWNERSHIP_LOST): Temporal has started another attempt.
        RPCError: Temporal does not respond.
    """
    handle = activity.client().get_async_activity_handle(task_token=activity.info().task_token)
    try:
        await handle.heartbeat(*details, rpc_timeout=_ACKNOWLEDGE_TIMEOUT)
    except AsyncActivityCancelledError:
        return  # the SDK cancels the attempt
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            raise failure(Failure.OWNERSHIP_LOST, "Another attempt of the step has begun.") from error
        raise


class StepQuarantineInterceptor(Interceptor):
    """The interceptor that quarantines steps (activities) that crash their workers.

    Args:
        lock: lock of the process, held while a quarantined step or a quarantined line runs.
        acknowledged: sends a heartbeat, and returns when Temporal has acknowledged it.
    """

    def __init__(self, lock: asyncio.Lock, acknowledged: AcknowledgedHeartbeat = send_heartbeat) -> None:
        self._lock, self._acknowledged = lock, acknowledged

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return StepQuarantineInbound(next, self._lock, self._acknowledged)


class _CarriedDetails(ActivityOutboundInterceptor):
    """An interceptor that adds details to each heartbeat of an activity.

    If this attempt crashes, the next attempt reads the details.
    """

    def __init__(self, next: ActivityOutboundInterceptor) -> None:
        super().__init__(next)
        self.details: tuple[object, ...] = ()

    def heartbeat(self, *details: object) -> None:
        own = (each for each in details if not isinstance(each, StepCrashes) and each not in self.details)
        super().heartbeat(*own, *self.details)


class StepQuarantineInbound(ActivityInboundInterceptor):
    """The code around an attempt of a step (activity). If earlier attempts crashed, it runs in quarantine."""

    def __init__(
        self, next: ActivityInboundInterceptor, lock: asyncio.Lock, acknowledged: AcknowledgedHeartbeat
    ) -> None:
        super().__init__(next)
        self._lock, self._acknowledged = lock, acknowledged
        self._carried: _CarriedDetails | None = None

    def init(self, outbound: ActivityOutboundInterceptor) -> None:
        self._carried = _CarriedDetails(outbound)
        super().init(self._carried)

    async def execute_activity(self, input: ExecuteActivityInput) -> object:
        """Run one attempt, and return the result of the activity.

        Raises:
            ApplicationError (WORKER_CRASHED): too many attempts crashed in quarantine; never retried.
        """
        info = activity.info()
        found = step_crashes(info.attempt, info.heartbeat_details, info.started_time)
        self._carry(found)
        if found.crashes < CRASHES_BEFORE_QUARANTINE:
            return await super().execute_activity(input)
        fields = {"step": info.activity_type, **found.model_dump(exclude={"is_quarantined"})}
        if found.quarantined_crashes >= MAX_QUARANTINED_CRASHES:
            logger.error("a step crashed its workers and was given up", extra=fields)
            raise failure(Failure.WORKER_CRASHED, f"{found.crashes} workers crashed.")
        logger.warning("a step whose workers crashed runs in quarantine", extra=fields)
        async with heartbeating():
            # Nothing may wait inside the lock's `acquire`: slices could not see their stop signals there.
            while self._lock.locked():  # noqa: ASYNC110 - see above
                await asyncio.sleep(_POLL_SECONDS)
            async with self._lock:
                # A crash counts only from here on. The heartbeat must arrive before the crash.
                await self._acknowledged(self._carry(found.model_copy(update={"is_quarantined": True})))
                return await super().execute_activity(input)

    def _carry(self, crashes: StepCrashes) -> Sequence[object]:
        """Add `crashes` to all heartbeats of this attempt from now on. Return the details that are added."""
        failures = previous_failures(activity.info().heartbeat_details)
        details = (*failure_count_details(failures), crashes)
        if self._carried is not None:
            self._carried.details = details
        return details
