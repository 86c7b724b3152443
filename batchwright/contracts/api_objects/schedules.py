"""Objects of `/v1/x/schedules`: schedules that create batches, and the times at which they were due."""

from typing import Literal

from batchwright.contracts.api_objects.openai import ApiObject
from batchwright.contracts.api_objects.pages import ListPage
from batchwright.contracts.temporal_payloads.batch_schedules import OverlapPolicy
from batchwright.contracts.terms import BatchStatus


class RunError(ApiObject):
    code: str
    message: str


class ScheduleRunObject(ApiObject):
    """One time at which a schedule was due, and the batch that the schedule created at this time.

    `error` says why no batch was created; null if a batch was created. `status` is the status of the batch;
    null if no batch was created, or if the batch was deleted.
    """

    scheduled_at: int
    batch_id: str | None
    status: BatchStatus | None
    error: RunError | None


class ExpiryObject(ApiObject):
    anchor: Literal["created_at"] = "created_at"
    seconds: int


class ScheduledBatchExtension(ApiObject):
    deduplicate: bool
    priority: int | None
    max_cost: str | None
    output_location: str | None


class ScheduledBatchObject(ApiObject):
    """Fields from which a schedule creates its batches, as in `POST /v1/batches`."""

    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: dict[str, str] | None
    output_expires_after: ExpiryObject | None
    x_batchwright: ScheduledBatchExtension


class ScheduleObject(ApiObject):
    """A schedule that creates batches.

    - `next_times` are the next times at which the schedule is due. The list is empty while the schedule is
      paused.
    - `runs` are the latest times at which the schedule was due, newest first.
    - `skipped` is the number of due times at which no batch was created, because `overlap` did not allow a
      batch, or because Temporal was unavailable for over an hour.
    """

    id: str
    object: Literal["schedule"] = "schedule"
    description: str
    cron: str
    time_zone: str
    overlap: OverlapPolicy
    paused: bool
    batch: ScheduledBatchObject
    created_at: int
    next_times: list[int]
    skipped: int
    runs: list[ScheduleRunObject]


class SchedulePage(ListPage[ScheduleObject], ApiObject):
    pass


class DeletedSchedule(ApiObject):
    id: str
    object: Literal["schedule"] = "schedule"
    deleted: Literal[True] = True
