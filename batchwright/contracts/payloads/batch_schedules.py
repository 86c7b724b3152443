"""Schedules that create batches: what a batch is created from, and the activities of a run."""

from datetime import datetime
from enum import StrEnum

from temporalio import activity

from batchwright.contracts.message import Message
from batchwright.contracts.payloads.batch import BatchOrder, Caller
from batchwright.contracts.registry.prices import DecimalText
from batchwright.contracts.terms import BatchStatus, Endpoint

WORKFLOW = "ScheduledBatchWorkflow"


class OverlapPolicy(StrEnum):
    """Ways to treat a batch that is due while an earlier batch of its schedule has not ended.

    The names are Temporal's names.
    """

    SKIP = "skip"  # it is not created
    BUFFER_ONE = "buffer_one"  # it is created when the earlier batch has ended, but at most one waits
    BUFFER_ALL = "buffer_all"  # the same, and all wait
    CANCEL_OTHER = "cancel_other"  # the earlier batch is cancelled first
    ALLOW_ALL = "allow_all"  # both run


class BatchTemplate(Message):
    """Values from which a batch is created, except its id and its times. It contains no secret."""

    input_file_id: str
    endpoint: Endpoint
    completion_window: str  # as the client wrote it
    window_seconds: int
    metadata: dict[str, str] | None = None
    output_expires_after_seconds: int | None = None
    deduplicate: bool = False
    priority: int | None = None  # None: the default
    max_cost: DecimalText | None = None
    caller: Caller = Caller()
    message_requests: int = 0
    input_location: str | None = None
    output_location: str | None = None


class ScheduleSpec(Message):
    """When batches of a schedule are created, as Temporal knows it. `id` is the schedule's id there."""

    tenant: str
    id: str
    cron: str
    time_zone: str
    overlap: OverlapPolicy


class ScheduleRef(Message):
    """Argument of the workflow that a schedule starts. Its activity reads all else from the database."""

    tenant: str
    schedule_id: str


class ScheduledRun(Message):
    """One time at which a schedule was due. `run_id` is the workflow id and the id of its first run."""

    schedule: ScheduleRef
    run_id: str
    scheduled_at: datetime


class ScheduledBatch(Message):
    """The order of a run's batch, or the reason why there is no batch.

    The reason consists of a stable code and a message for the tenant.
    """

    order: BatchOrder | None = None
    code: str = ""
    refusal: str = ""


class RunRecord(Message):
    """Outcome of one run of a schedule, as shown in the schedule's list of runs."""

    run: ScheduledRun
    batch: ScheduledBatch


class ScheduledBatchResult(Message):
    """Result of the workflow: the batch and its final status, or why no batch was created."""

    batch_id: str = ""
    status: BatchStatus | None = None
    refusal: str = ""


class ScheduleActivities:
    """Declares the activities of a run, so that workflows can call them.

    The implementations are in `activities/batch_schedules/activity.py`.
    """

    @activity.defn
    async def admit_scheduled_batch(self, run: ScheduledRun) -> ScheduledBatch:
        """Check that the batch that is due now may be created. Return its order, or the reason against it.

        A repeated call returns the order of the same batch. The batch has no row yet.
        """
        raise NotImplementedError

    @activity.defn
    async def record_scheduled_run(self, record: RunRecord) -> None:
        """Insert the row of the run's batch, whose workflow was started, and add the run to its schedule."""
        raise NotImplementedError

    @activity.defn
    async def record_scheduled_cancel(self, order: BatchOrder) -> None:
        """Record that the batch is being cancelled, so that clients see it."""
        raise NotImplementedError

    @activity.defn
    async def end_of_scheduled_batch(self, order: BatchOrder) -> BatchStatus | None:
        """Return the final status of a batch; None if it was deleted.

        While the batch is live, the activity fails, and Temporal retries it. So no worker is occupied by
        waiting.
        """
        raise NotImplementedError
