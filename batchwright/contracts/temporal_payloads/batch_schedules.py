"""Schedules that create batches: what a batch is created from, and the activities that create it."""

from datetime import datetime
from enum import StrEnum

from temporalio import activity

from batchwright.contracts.message import Message
from batchwright.contracts.model_registry.price_config import DecimalText
from batchwright.contracts.temporal_payloads.batch import BatchOrder, Caller
from batchwright.contracts.terms import BatchStatus, Endpoint

WORKFLOW = "ScheduledBatchWorkflow"


class OverlapPolicy(StrEnum):
    """Rule for a batch that is due while an earlier batch of its schedule has not ended.

    The names are the same as in Temporal.
    """

    SKIP = "skip"  # the batch is not created
    BUFFER_ONE = "buffer_one"  # created when the earlier batch has ended; at most one batch waits
    BUFFER_ALL = "buffer_all"  # created when the earlier batch has ended; all batches wait
    CANCEL_OTHER = "cancel_other"  # the earlier batch is cancelled first
    ALLOW_ALL = "allow_all"  # both batches run


class BatchTemplate(Message):
    """Data from which a batch is created: everything except its id and its times. It contains no secret."""

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
    """Rules for when a schedule creates batches, as Temporal stores them.

    `id` is the id of the schedule in Temporal.
    """

    tenant: str
    id: str
    cron: str
    time_zone: str
    overlap: OverlapPolicy


class ScheduleRef(Message):
    """Argument of the workflow that a schedule starts: the ids by which its activity finds the schedule.

    The activity reads everything else from the database.
    """

    tenant: str
    schedule_id: str


class ScheduledRun(Message):
    """One time at which a schedule was due. Temporal starts a workflow for each such time.

    `run_id` identifies this workflow. It is the workflow's id, a slash, and Temporal's id of the workflow's
    first run.
    """

    schedule: ScheduleRef
    run_id: str
    scheduled_at: datetime


class ScheduledBatch(Message):
    """The start argument of the batch that is due (`order`), or the reason why no batch is created.

    `code` identifies the reason for programs, and is the same in all versions. `refusal` is a message for the
    tenant.
    """

    order: BatchOrder | None = None
    code: str = ""
    refusal: str = ""


class RunRecord(Message):
    """A record of one run of a schedule: the batch that was created, or why no batch was created.

    A schedule runs each time it is due. Clients can list its runs.
    """

    run: ScheduledRun
    batch: ScheduledBatch


class ScheduledBatchResult(Message):
    """Result of the workflow of a schedule: the batch and its final status, or why no batch was created."""

    batch_id: str = ""
    status: BatchStatus | None = None
    refusal: str = ""


class ScheduleActivities:
    """The declarations of the activities that a schedule's workflow calls, without their implementation.

    The implementations are in `activities/batch_schedules/activity.py`.
    """

    @activity.defn
    async def admit_scheduled_batch(self, run: ScheduledRun) -> ScheduledBatch:
        """Check if a batch is allowed for `run`. Return the batch's start argument, or a refusal.

        This activity does not insert the batch's database row. If Temporal repeats the activity, the start
        argument has the same batch id.
        """
        raise NotImplementedError

    @activity.defn
    async def record_scheduled_run(self, record: RunRecord) -> None:
        """Add a run to the schedule's list of runs.

        If the run has created a batch, also insert the database row of the batch.
        """
        raise NotImplementedError

    @activity.defn
    async def record_scheduled_cancel(self, order: BatchOrder) -> None:
        """Record in the database that the batch of `order` is being cancelled, so that clients see this."""
        raise NotImplementedError

    @activity.defn
    async def end_of_scheduled_batch(self, order: BatchOrder) -> BatchStatus | None:
        """Return the final status of the batch of `order`; None if the batch was deleted.

        While the batch runs, the activity fails, and Temporal calls it again later. So no worker has to wait
        for the end of the batch.
        """
        raise NotImplementedError
