"""How each activity is scheduled: queue, timeouts, retries, priority, summary."""

from datetime import datetime, timedelta

from temporalio import workflow
from temporalio.common import Priority, RetryPolicy
from temporalio.workflow import ActivityCancellationType, ActivityConfig

with workflow.unsafe.imports_passed_through():
    from batchwright.contracts.batch import BatchOrder
    from batchwright.contracts.errors import NEVER_RETRIED
    from batchwright.contracts.execution import ModelRun
    from batchwright.contracts.names import CONTROL_QUEUE, IO_QUEUE, inference_queue
    from batchwright.contracts.retention import Kind

# What a cancelled step may take beyond its grace before the workflow goes on without it.
STOP_MARGIN = timedelta(seconds=5)
# The same where the window closed: slices know that by themselves and need only time to store what they have.
# With the grace (R4) it stays below the ten seconds in which a batch is to expire.
CLOSED_MARGIN = timedelta(seconds=4)
# For slices that were told to stop there is always a timer: a run that replays finds the one it had.
LEAST_WAIT = timedelta(seconds=1)
# What a slice may take beyond the deadline and its grace: its last flush, or a restart of its worker.
CLOSING_MARGIN = timedelta(minutes=1)
# What a cancelled ingestion or finalization may take to end.
CANCEL_STEP = timedelta(seconds=10)

_INGEST_ATTEMPT = timedelta(hours=6)
_FINALIZE_ATTEMPT = timedelta(hours=6)
_END_ATTEMPT = timedelta(minutes=1)
# A turn takes seconds; what comes on top is one ended batch with very many objects.
_RETENTION_ATTEMPT = timedelta(minutes=10)
_RETENTION_BEAT = timedelta(seconds=30)
# The next run, an hour later, tries again anyway.
_RETENTION_PATIENCE = timedelta(minutes=20)
# It asks the storage for every file there is.
_AUDIT_ATTEMPT = timedelta(hours=6)
_AUDIT_PATIENCE = timedelta(hours=12)
_FINALIZE_FIRST = 1  # priority key: what finalizes frees storage, slots and somebody's wait
_LAST_PRIORITY = 5


def retries() -> RetryPolicy:
    """Without end: how long trying makes sense is the business of schedule_to_close."""
    return RetryPolicy(
        initial_interval=timedelta(seconds=1),
        maximum_interval=timedelta(seconds=60),
        non_retryable_error_types=list(NEVER_RETRIED),
    )


def ingestion(order: BatchOrder, now: datetime) -> ActivityConfig:
    """Ingestion may outlast the window, for the lines must be counted, but not for ever."""
    patience = timedelta(seconds=order.policy.finalize_patience_seconds)
    priority = min(max(order.priority, _FINALIZE_FIRST + 1), _LAST_PRIORITY)
    return ActivityConfig(
        task_queue=IO_QUEUE,
        schedule_to_close_timeout=max(order.expires_at - now, timedelta()) + patience,
        start_to_close_timeout=_INGEST_ATTEMPT,
        heartbeat_timeout=_heartbeat(order.policy.heartbeat_timeout_seconds),
        cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        retry_policy=retries(),
        priority=_share(priority, order.tenant, order.weight),
        summary="validate the input and plan it",
    )


def finalization(order: BatchOrder, status: str) -> ActivityConfig:
    return ActivityConfig(
        task_queue=IO_QUEUE,
        schedule_to_close_timeout=timedelta(seconds=order.policy.finalize_patience_seconds),
        start_to_close_timeout=_FINALIZE_ATTEMPT,
        heartbeat_timeout=_heartbeat(order.policy.heartbeat_timeout_seconds),
        cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        retry_policy=retries(),
        priority=_share(_FINALIZE_FIRST, order.tenant, order.weight),
        summary=f"write the files, end as {status}",
    )


def ending(order: BatchOrder, status: str) -> ActivityConfig:
    return ActivityConfig(
        task_queue=CONTROL_QUEUE,
        start_to_close_timeout=_END_ATTEMPT,
        retry_policy=retries(),
        priority=_share(_FINALIZE_FIRST, order.tenant, order.weight),
        summary=f"end as {status}, without files",
    )


def retention(kind: Kind) -> ActivityConfig:
    """Behind everything of the batches."""
    return ActivityConfig(
        task_queue=IO_QUEUE,
        schedule_to_close_timeout=_RETENTION_PATIENCE,
        start_to_close_timeout=_RETENTION_ATTEMPT,
        heartbeat_timeout=_RETENTION_BEAT,
        retry_policy=retries(),
        priority=Priority(priority_key=_LAST_PRIORITY),
        summary=f"delete {kind}",
    )


def auditing() -> ActivityConfig:
    """Behind everything of the batches, like retention."""
    return ActivityConfig(
        task_queue=IO_QUEUE,
        schedule_to_close_timeout=_AUDIT_PATIENCE,
        start_to_close_timeout=_AUDIT_ATTEMPT,
        heartbeat_timeout=_RETENTION_BEAT,
        retry_policy=retries(),
        priority=Priority(priority_key=_LAST_PRIORITY),
        summary="compare rows, runs, files and counts",
    )


def slice_turns(run: ModelRun, number: int, now: datetime, queue: str = "") -> ActivityConfig:
    """All turns of one slice, on the model's own queue if none is named.

    No schedule-to-start timeout: waiting for a slot is what the window is for."""
    grace = timedelta(seconds=run.policy.expiry_grace_seconds)
    return ActivityConfig(
        task_queue=queue or inference_queue(run.safe),
        schedule_to_close_timeout=run.closes_at - now + grace + CLOSING_MARGIN,
        heartbeat_timeout=_heartbeat(run.policy.heartbeat_timeout_seconds),
        cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        retry_policy=retries(),
        priority=_share(run.priority, run.tenant, run.weight),
        summary=f"slice {number + 1} of {run.slices}",
    )


def _share(priority: int, tenant: str, weight: float) -> Priority:
    return Priority(priority_key=priority, fairness_key=tenant, fairness_weight=weight)


def _heartbeat(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)
