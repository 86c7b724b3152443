"""Scheduling options of each activity: task queue, timeouts, retries, priority, summary."""

from datetime import datetime, timedelta

from temporalio import workflow
from temporalio.common import Priority, RetryPolicy, WorkflowIDReusePolicy
from temporalio.workflow import (
    ActivityCancellationType,
    ActivityConfig,
    ChildWorkflowConfig,
    ParentClosePolicy,
)

with workflow.unsafe.imports_passed_through():
    from batchwright.contracts.errors import NEVER_RETRIED, Failure
    from batchwright.contracts.temporal_names import (
        CONTROL_QUEUE,
        IO_QUEUE,
        OUTPUT_QUEUE,
        WEBHOOK_QUEUE,
        inference_queue,
        output_copy_id,
    )
    from batchwright.contracts.temporal_payloads.batch import BatchOrder
    from batchwright.contracts.temporal_payloads.batch_schedules import ScheduleRef
    from batchwright.contracts.temporal_payloads.execution import ModelRun
    from batchwright.contracts.temporal_payloads.retention import RetentionKind
    from batchwright.contracts.temporal_payloads.webhooks import DeliveryOrder
    from batchwright.rules.dispatch.batch_ranking import fairness_key_of, is_late, size_group

# How long stopped slices may take after their grace period before the workflow continues without them.
STOP_MARGIN = timedelta(seconds=5)
# The same time after the deadline. Slices know the deadline and only need time to store their results.
# Together with the grace period, it is less than the ten seconds in which a batch must expire.
DEADLINE_STOP_MARGIN = timedelta(seconds=4)
# A timer for stopped slices always exists, so that a replay finds the same commands.
MIN_STOP_WAIT = timedelta(seconds=1)
# How long a slice may take after deadline and grace period, for its last flush or a restart of its worker.
LAST_FLUSH_MARGIN = timedelta(minutes=1)
# A batch that has to end early ends after this time even if its files or its ingestion are not finished.
# It is longer than writing the files of a large batch. A client without files may think they are lost.
FILES_TIMEOUT = timedelta(minutes=1)
# A model run reports its progress to the batch at most this often.
PROGRESS_INTERVAL = timedelta(seconds=10)
# History events after which a model run may hand slices over once more. Each time adds about 13 events to the
# batch's history.
EVENTS_BETWEEN_HAND_OVERS = 2_000

_INGEST_ATTEMPT = timedelta(hours=6)
_FINALIZE_ATTEMPT = timedelta(hours=6)
_END_ATTEMPT = timedelta(minutes=1)
# A turn takes seconds, plus the time for one ended batch with very many objects.
_RETENTION_ATTEMPT = timedelta(minutes=10)
_RETENTION_BEAT = timedelta(seconds=30)
# The next scheduled run, an hour later, tries again in any case.
_RETENTION_PATIENCE = timedelta(minutes=20)
# The consistency check requests the object of every file from storage.
_CONSISTENCY_CHECK_ATTEMPT = timedelta(hours=6)
# Each turn of a slice counts as an attempt, so the backoff after a lost worker would always be the longest.
# A short one is safe: a worker is lost only after the heartbeat timeout, and turns set their own pauses.
_SLICE_RETRY = timedelta(seconds=2)
_CONSISTENCY_CHECK_PATIENCE = timedelta(hours=12)
# The request to the endpoint takes 15 s at most.
_WEBHOOK_ATTEMPT = timedelta(seconds=30)
# A copy waits for its own bucket, which others must repair. The files are kept for longer.
_OUTPUT_COPY_PATIENCE = timedelta(hours=72)
_OUTPUT_COPY_PAUSE = timedelta(minutes=10)  # at most, between two attempts
_SCHEDULE_PATIENCE = timedelta(hours=1)
# Before its batch is created, a schedule has no policy. Two attempts may run at the same time without harm.
_SCHEDULE_BEAT = timedelta(seconds=10)
_FINALIZE_FIRST = 1  # priority key; a finalization frees storage and slots, and a client waits
_LAST_PRIORITY = 5


def unlimited_retries(longest: timedelta = timedelta(minutes=1)) -> RetryPolicy:
    """Return a policy that retries an activity until its schedule-to-close timeout.

    If the activity has no such timeout, it is retried forever. Failures of the types in NEVER_RETRIED are not
    retried. `longest` is the maximum pause between two attempts.
    """
    return RetryPolicy(
        initial_interval=timedelta(seconds=1),
        maximum_interval=longest,
        non_retryable_error_types=list(NEVER_RETRIED),
    )


def ingestion_options(order: BatchOrder, now: datetime) -> ActivityConfig:
    """Return the options of the ingestion activity, which reads and validates the input.

    Because the lines must be counted in any case, ingestion may continue after the deadline. The field
    `finalize_patience_seconds` of the batch's policy limits this extra time.
    """
    patience = timedelta(seconds=order.policy.finalize_patience_seconds)
    key = fairness_key_of(order.tenant, order.priority)
    return ActivityConfig(
        task_queue=IO_QUEUE,
        schedule_to_close_timeout=max(order.deadline - now, timedelta()) + patience,
        start_to_close_timeout=_INGEST_ATTEMPT,
        heartbeat_timeout=_heartbeat(order.policy.heartbeat_timeout_seconds),
        cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        retry_policy=unlimited_retries(),
        priority=Priority(fairness_key=key, fairness_weight=order.fairness_weight),
        summary="validate the input and plan it",
    )


def finalization_options(order: BatchOrder, status: str, *, waits_for_storage: bool) -> ActivityConfig:
    """Return the options of the finalization activity, which writes the files.

    Args:
        status: status with which the batch ends. Temporal's Web UI shows it in the summary of the activity.
        waits_for_storage: if True, the activity is retried while storage is unavailable. If False, it fails
            at once.
    """
    retry = unlimited_retries()
    if not waits_for_storage:
        never = [*(retry.non_retryable_error_types or []), Failure.STORAGE_UNAVAILABLE]
        retry.non_retryable_error_types = never
    return ActivityConfig(
        task_queue=IO_QUEUE,
        schedule_to_close_timeout=timedelta(seconds=order.policy.finalize_patience_seconds),
        start_to_close_timeout=_FINALIZE_ATTEMPT,
        heartbeat_timeout=_heartbeat(order.policy.heartbeat_timeout_seconds),
        cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        retry_policy=retry,
        priority=_first_priority(order),
        summary=f"write the files, end as {status}",
    )


def insert_row_options(order: BatchOrder) -> ActivityConfig:
    return ActivityConfig(
        task_queue=CONTROL_QUEUE,
        start_to_close_timeout=_END_ATTEMPT,
        heartbeat_timeout=_heartbeat(order.policy.heartbeat_timeout_seconds),
        retry_policy=unlimited_retries(),
        priority=_first_priority(order),
        summary="insert the row, if it is missing",
    )


def end_options(order: BatchOrder, status: str, files: str = "without files") -> ActivityConfig:
    return ActivityConfig(
        task_queue=CONTROL_QUEUE,
        start_to_close_timeout=_END_ATTEMPT,
        heartbeat_timeout=_heartbeat(order.policy.heartbeat_timeout_seconds),
        retry_policy=unlimited_retries(),
        priority=_first_priority(order),
        summary=f"end as {status}, {files}",
    )


def retention_options(kind: RetentionKind) -> ActivityConfig:
    """Return the options of the activity that deletes expired data of one kind.

    The activity has the lowest priority.
    """
    return ActivityConfig(
        task_queue=IO_QUEUE,
        schedule_to_close_timeout=_RETENTION_PATIENCE,
        start_to_close_timeout=_RETENTION_ATTEMPT,
        heartbeat_timeout=_RETENTION_BEAT,
        retry_policy=unlimited_retries(),
        priority=Priority(priority_key=_LAST_PRIORITY),
        summary=f"delete {kind}",
    )


def consistency_check_options() -> ActivityConfig:
    """Return the options of the consistency check activity. The activity has the lowest priority."""
    return ActivityConfig(
        task_queue=IO_QUEUE,
        schedule_to_close_timeout=_CONSISTENCY_CHECK_PATIENCE,
        start_to_close_timeout=_CONSISTENCY_CHECK_ATTEMPT,
        heartbeat_timeout=_RETENTION_BEAT,
        retry_policy=unlimited_retries(),
        priority=Priority(priority_key=_LAST_PRIORITY),
        summary="compare rows, runs, files and counts",
    )


def webhook_options(order: DeliveryOrder, attempt: int) -> ActivityConfig:
    """Return the options of one attempt to deliver a webhook.

    Endpoints share the workers fairly: many slow deliveries to one endpoint do not delay deliveries to
    others. Some endpoints are used for only one batch or one call (a single request). All such endpoints of a
    tenant together get the same share of the workers as one other endpoint.
    """
    return ActivityConfig(
        task_queue=WEBHOOK_QUEUE,
        start_to_close_timeout=_WEBHOOK_ATTEMPT,
        retry_policy=unlimited_retries(),
        priority=Priority(fairness_key=order.fairness_key or order.endpoint_id),
        summary=f"attempt {attempt}",
    )


def output_copy_workflow_options(order: BatchOrder) -> ChildWorkflowConfig:
    """Return the options of the workflow that copies the files of a batch.

    This workflow continues after the workflow of the batch has ended.
    """
    return ChildWorkflowConfig(
        id=output_copy_id(order.batch_id),
        task_queue=CONTROL_QUEUE,
        id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
        parent_close_policy=ParentClosePolicy.ABANDON,
        static_summary=f"files of a batch of tenant {order.tenant}, to another bucket",
        priority=Priority(fairness_key=order.tenant, fairness_weight=order.fairness_weight),
    )


def output_copy_options(order: BatchOrder) -> ActivityConfig:
    """Return the options of the activity that copies the files of a batch.

    The activity is retried for 72 h. It has its own task queue, so slow buckets delay no other work.
    """
    return ActivityConfig(
        task_queue=OUTPUT_QUEUE,
        schedule_to_close_timeout=_OUTPUT_COPY_PATIENCE,
        start_to_close_timeout=_FINALIZE_ATTEMPT,
        heartbeat_timeout=_heartbeat(order.policy.heartbeat_timeout_seconds),
        retry_policy=unlimited_retries(_OUTPUT_COPY_PAUSE),
        priority=Priority(fairness_key=order.tenant, fairness_weight=order.fairness_weight),
        summary="copy the files to the output location",
    )


def output_copy_end_options(order: BatchOrder) -> ActivityConfig:
    return ActivityConfig(
        task_queue=CONTROL_QUEUE,
        start_to_close_timeout=_END_ATTEMPT,
        heartbeat_timeout=_heartbeat(order.policy.heartbeat_timeout_seconds),
        retry_policy=unlimited_retries(),
        priority=Priority(fairness_key=order.tenant),
        summary="record that the files were not copied",
    )


def scheduled_batch_options(schedule: ScheduleRef) -> ActivityConfig:
    """Return the options of the activity that checks if a scheduled batch may be created.

    The activity is retried for an hour. If it has not succeeded by then, no batch is created.
    """
    return ActivityConfig(
        task_queue=CONTROL_QUEUE,
        schedule_to_close_timeout=_SCHEDULE_PATIENCE,
        start_to_close_timeout=_END_ATTEMPT,
        heartbeat_timeout=_SCHEDULE_BEAT,
        retry_policy=unlimited_retries(),
        priority=Priority(fairness_key=schedule.tenant),
        summary="check if the batch may be created",
    )


def scheduled_run_options(schedule: ScheduleRef, summary: str) -> ActivityConfig:
    """Return the options of the activities that record a schedule's run, and wait for the run's batch to end.

    These activities are retried forever.
    """
    return ActivityConfig(
        task_queue=CONTROL_QUEUE,
        start_to_close_timeout=_END_ATTEMPT,
        heartbeat_timeout=_SCHEDULE_BEAT,
        retry_policy=unlimited_retries(),
        priority=Priority(fairness_key=schedule.tenant),
        summary=summary,
    )


def batch_options(order: BatchOrder) -> ChildWorkflowConfig:
    """Return the options of the workflow of a batch that a schedule creates.

    The options are the same as for every other batch. The batch continues if the schedule's workflow is
    terminated.
    """
    return ChildWorkflowConfig(
        id=order.batch_id,
        task_queue=CONTROL_QUEUE,
        id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
        parent_close_policy=ParentClosePolicy.ABANDON,
        execution_timeout=order.longest_run,
        static_summary=order.summary,
        priority=Priority(fairness_key=order.tenant, fairness_weight=order.fairness_weight),
    )


def slice_options(run: ModelRun, number: int, now: datetime) -> ActivityConfig:
    """Return the options of the activity that sends the lines of slice `number`.

    The activity is scheduled on the task queue that `run` names, or on the model's own task queue if `run`
    names none. The activity may wait for a worker until the deadline.
    """
    grace = timedelta(seconds=run.policy.expiry_grace_seconds)
    group = size_group(run.lines, is_late=is_late(now, run.created_at or now, run.deadline))
    key = fairness_key_of(run.policy.fairness_key or run.tenant, run.priority, group)
    return ActivityConfig(
        task_queue=run.queue or inference_queue(run.safe_model),
        schedule_to_close_timeout=run.deadline - now + grace + LAST_FLUSH_MARGIN,
        heartbeat_timeout=_heartbeat(run.policy.heartbeat_timeout_seconds),
        cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        retry_policy=unlimited_retries(_SLICE_RETRY),
        priority=Priority(fairness_key=key, fairness_weight=run.policy.weight_or(run.weight)),
        summary=f"slice {number} of 0 to {run.slices - 1}",
    )


def _first_priority(order: BatchOrder) -> Priority:
    return Priority(
        priority_key=_FINALIZE_FIRST, fairness_key=order.tenant, fairness_weight=order.fairness_weight
    )


def _heartbeat(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)
