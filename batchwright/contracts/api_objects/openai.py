"""Objects of OpenAI's API as Batchwright returns them. Every field is always present.

Times are Unix seconds.
"""

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict

from batchwright.contracts.api_objects.pages import ListPage
from batchwright.contracts.temporal_payloads.batch import (
    DEFAULT_PRIORITY,
    ErrorCount,
    ModelCounts,
    SourceBatch,
    StartFit,
    WindowFit,
)
from batchwright.contracts.terms import BatchStatus, UploadStatus, Usage


class ApiObject(BaseModel):
    """The base class of response objects. Their JSON schema requires all fields and allows no others."""

    model_config = ConfigDict(extra="forbid", json_schema_serialization_defaults_required=True)


class FileObject(ApiObject):
    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: int | None
    filename: str
    purpose: str
    status: Literal["processed"] = "processed"
    status_details: None = None


class DeletedFile(ApiObject):
    id: str
    object: Literal["file"] = "file"
    deleted: Literal[True] = True


class DeletedBatch(ApiObject):
    id: str
    object: Literal["batch"] = "batch"
    deleted: Literal[True] = True


class UploadObject(ApiObject):
    id: str
    object: Literal["upload"] = "upload"
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: str
    status: UploadStatus
    file: FileObject | None


class PartObject(ApiObject):
    id: str
    object: Literal["upload.part"] = "upload.part"
    created_at: int
    upload_id: str


class BatchError(ApiObject):
    code: str
    message: str
    param: str | None
    line: int | None


class BatchErrors(ApiObject):
    object: Literal["list"] = "list"
    data: list[BatchError]


class RequestCounts(ApiObject):
    total: int
    completed: int
    failed: int

    @property
    def settled(self) -> int:
        return self.completed + self.failed


class InputDetails(ApiObject):
    cached_tokens: int


class OutputDetails(ApiObject):
    reasoning_tokens: int


class UsageObject(ApiObject):
    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int

    @classmethod
    def of(cls, usage: Usage) -> Self:
        return cls(
            input_tokens=usage.input_tokens,
            input_tokens_details=InputDetails(cached_tokens=usage.cached_tokens),
            output_tokens=usage.output_tokens,
            output_tokens_details=OutputDetails(reasoning_tokens=usage.reasoning_tokens),
            total_tokens=usage.total_tokens,
        )


class WaitingObject(ApiObject):
    """Reason why a batch waits.

    `model` is null if the whole batch waits. `since` is null if it is not known when the wait began.
    """

    model: str | None
    reason: str
    since: int | None = None


class ForecastObject(ApiObject):
    """Forecast of when the last line of a batch gets its result. The forecast was made at `made_at`.

    - With a probability of 50 %, the batch ends within `remaining_seconds_p50` seconds after this response.
    - With a probability of 90 %, the batch ends within `remaining_seconds_p90` seconds after this response.
    - `window` says if the batch ends within its completion window. It is `fits` if the probability is 90 % or
      more, `at_risk` from 50 % to 90 %, and `late` below 50 %.
    - `lines_ahead` is the number of lines of other batches that are sent before the last line of this batch.
    """

    window: WindowFit
    remaining_seconds_p50: int
    remaining_seconds_p90: int
    lines_per_second: float
    lines_ahead: int
    made_at: int


class StartForecastObject(ApiObject):
    """Forecast of a batch's end, made at `made_at`, before the first line of the batch was sent.

    - Seconds count from `made_at`.
    - `window` says if the batch ends within its completion window. It is `fits` if the probability is 90 % or
      more, and `cannot` if the batch is late even in the best case. In all other cases, it is `at_risk`.
    - `lines_ahead` is the number of lines of other batches that are sent before the last line of this batch.
    """

    window: StartFit
    seconds_p50: int
    seconds_p90: int
    lines_ahead: int
    made_at: int


class ModelCost(ApiObject):
    """Cost of the lines of one model; `amount` is null if the model had no prices when the batch began."""

    model: str
    amount: str | None


class BatchCost(ApiObject):
    """Cost of the successful lines of a batch. Amounts are decimal numbers as text.

    `final` is true once the batch has ended and its files are written.
    """

    amount: str
    currency: str
    final: bool
    models: list[ModelCost]


class BatchWebhook(ApiObject):
    """The webhook endpoint that was created together with a batch.

    `secret` is null if the operator has removed the encryption key of the secret. Rotate the secret to get a
    new one.
    """

    id: str
    url: str
    events: list[str]
    details: bool
    secret: str | None


class OutputLocation(ApiObject):
    """The location in a bucket to which the files of a batch are copied when the batch ends.

    `state` is `pending`, `written` or `failed`. While `state` is `pending`, a failed copy is retried. `error`
    says why the last attempt failed; null if no attempt has failed.
    """

    url: str
    state: str
    error: str | None


class BatchExtension(ApiObject):
    """Fields that Batchwright adds to OpenAI's batch object.

    - `paused` and `waiting` are null after the batch has ended.
    - `forecast` is null if the batch is not in progress, or if the speed of its lines is not known.
    - `start_forecast` is made once, after validation. Until then, it is null. It stays null if the speed of a
      model was not known at that time.
    - `origin` is the ended batch that this batch retries or resumes.
    - If `deduplicate` is true, identical requests are sent once. In `models`, `duplicates` is the number of
      lines that get the response of an identical line.
    - `priority` is from 1 to 5. 5 is the most urgent.
    - `files_pending` is true if the batch has ended but its files are not written yet. Poll until it is
      false, then read the files and the counts.
    - `errors_summary` has the number of failed lines for each error code and model, largest number first.
    - `cost` is the cost of the batch so far. It is null if no model of the batch has prices.
    - `max_cost` is the cap on the cost, in the currency of `cost`. It is null if there is no cap.
    - `start_at` is the time at which the batch starts. It is null if the batch started when it was created.
    - `input_location` is the object from which the input file was copied. It is null if the file was
      uploaded.
    - `output_location` is the location in a bucket to which the output and error files are copied, and the
      state of the copying. It is null if the batch has no such location.
    - `webhook` is null except in the response that creates the batch.
    """

    models: list[ModelCounts]
    paused: bool | None = None
    waiting: list[WaitingObject] | None = None
    forecast: ForecastObject | None = None
    start_forecast: StartForecastObject | None = None
    origin: SourceBatch | None = None
    deduplicate: bool = False
    priority: int = DEFAULT_PRIORITY
    files_pending: bool = False
    errors_summary: list[ErrorCount] = []
    cost: BatchCost | None = None
    max_cost: str | None = None
    start_at: int | None = None
    input_location: str | None = None
    output_location: OutputLocation | None = None
    webhook: BatchWebhook | None = None


class BatchObject(ApiObject):
    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    model: str | None
    errors: BatchErrors | None
    input_file_id: str
    completion_window: str
    status: BatchStatus
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    usage: UsageObject
    metadata: dict[str, str] | None
    x_batchwright: BatchExtension

    @property
    def ended_at(self) -> int | None:
        ends = (self.completed_at, self.failed_at, self.expired_at, self.cancelled_at)
        return next((end for end in ends if end is not None), None)

    @property
    def forecast(self) -> ForecastObject | None:
        return self.x_batchwright.forecast

    @property
    def start_forecast(self) -> StartForecastObject | None:
        return self.x_batchwright.start_forecast

    @property
    def waiting(self) -> list[WaitingObject]:
        """Reasons why the batch waits. The list is empty if the batch does not wait."""
        return self.x_batchwright.waiting or []


class ThroughputSample(ApiObject):
    """The number of lines of a batch that had a final result at the time `at`, in Unix seconds."""

    at: int
    lines: int


class ThroughputObject(ApiObject):
    """The progress of a batch over time. Each sample says how many lines had a result at a certain time.

    The oldest sample comes first. It was taken when the first lines could be sent. The last sample is taken
    when the writing of the files begins. Until then, at least ten seconds pass between two samples.
    """

    object: Literal["batch.throughput"] = "batch.throughput"
    data: list[ThroughputSample]


class ModelObject(ApiObject):
    """A model that batches can use.

    `created` is always 0, because backends report no stable creation time.
    """

    id: str
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: str = "batchwright"


class FilePage(ListPage[FileObject], ApiObject):
    pass


class BatchPage(ListPage[BatchObject], ApiObject):
    pass


class ModelPage(ApiObject):
    object: Literal["list"] = "list"
    data: list[ModelObject]


class ErrorDetails(ApiObject):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorObject(ApiObject):
    """Body of every response with an error status."""

    error: ErrorDetails
