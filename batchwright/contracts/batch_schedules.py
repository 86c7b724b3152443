"""Schedules that create batches: what a batch is created from, and the activity that creates it."""

from datetime import datetime
from enum import StrEnum

from temporalio import activity

from batchwright.contracts.batch import BatchOrder, Caller
from batchwright.contracts.message import Message
from batchwright.contracts.openai import BatchStatus, Endpoint
from batchwright.contracts.prices import DecimalText

WORKFLOW = "ScheduledBatchWorkflow"


class OverlapPolicy(StrEnum):
    """What happens when a batch is due while an earlier batch of its schedule has not ended.

    The names are those of Temporal.
    """

    SKIP = "skip"  # it is not created
    BUFFER_ONE = "buffer_one"  # it is created when the earlier batch has ended, but at most one waits
    BUFFER_ALL = "buffer_all"  # the same, and all wait
    CANCEL_OTHER = "cancel_other"  # the earlier batch is cancelled first
    ALLOW_ALL = "allow_all"  # both run


class BatchTemplate(Message):
    """What a batch is created from, except its id and its times. It contains no secret."""

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
    """Result of the activity: the order of the batch to start, or why there is none."""

    order: BatchOrder | None = None
    refusal: str = ""


class ScheduledBatchResult(Message):
    """Result of the workflow: the batch and its final status, or why no batch was created."""

    batch_id: str = ""
    status: BatchStatus | None = None
    refusal: str = ""


class ScheduleActivities:
    """Declares the activity `create_scheduled_batch`, so that workflows can call it.

    The implementation is in `activities/batch_schedules/activity.py`.
    """

    @activity.defn
    async def create_scheduled_batch(self, run: ScheduledRun) -> ScheduledBatch:
        """Insert the row of the batch that is due now, and return its order. The batch is not started.

        If it may not be created, the result and the list of the schedule's runs say why. A repeated call
        creates no second batch.
        """
        raise NotImplementedError
