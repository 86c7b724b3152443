"""Objects of the API for operators: batches, holds, dead letters, statistics, models, workers, API keys."""

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, Field, JsonValue

from batchwright.contracts.api_objects.openai import BatchObject
from batchwright.contracts.api_objects.pages import ListPage
from batchwright.contracts.model_registry.backend_job_config import JobConfig, ModelKind
from batchwright.contracts.model_registry.registry_config import LoadBalancing, ModelSource, SettingSource
from batchwright.contracts.terms import (
    ActivityState,
    BatchStatus,
)


class HoldObject(BaseModel):
    """A hold: an operator has stopped the sending of all lines of a tenant or of a model.

    Exactly one of `tenant` and `model` is set; the other one is null.
    """

    object: Literal["hold"] = "hold"
    tenant: str | None
    model: str | None
    held_at: int = Field(description="Unix seconds")


class HoldList(BaseModel):
    object: Literal["list"] = "list"
    data: list[HoldObject]


class OperatorBatch(BatchObject):
    """A batch as its tenant sees it, together with the name of the tenant."""

    tenant: str


class OperatorBatchPage(ListPage[OperatorBatch]):
    pass


class PendingObject(BaseModel):
    """An activity of a batch's workflow that is running or waiting.

    The activity is a step or a slice. A step prepares or ends the batch. A slice sends a part of the lines.
    """

    state: ActivityState
    queue: str = Field(description="task queue of Temporal")
    worker: str | None = Field(description="that has it, or had it last; null if none has taken it yet")
    since: int = Field(description="when its state began, in Unix seconds")
    attempts: int = Field(description="number of the attempt that runs or comes next")
    heartbeat_at: int | None = Field(description="when the worker reported last; null if it has not yet")
    next_attempt_at: int | None = Field(description="of a step that waits; otherwise null")
    last_failure: str | None = Field(description="why the last attempt ended; null without one")


class StepObject(PendingObject):
    step: str = Field(description="`ingest`, `finalize` or `end`")


class SliceObject(PendingObject):
    object: Literal["batch.slice"] = "batch.slice"
    model: str
    number: int | None = Field(description="from 0, as in logs and object keys; null if unknown")
    completed: int
    failed: int
    segments: int | None = Field(description="stored objects with results; null if storage did not answer")


class BatchSlicesObject(BaseModel):
    object: Literal["list"] = "list"
    steps: list[StepObject] = Field(description="steps of the batch that have not ended, except its slices")
    data: list[SliceObject] = Field(description="slices that are scheduled and have not ended")


class TenantBatchCounts(BaseModel):
    """Numbers of batches of one tenant, by status. Statuses without batches are left out."""

    tenant: str
    statuses: dict[BatchStatus, int]
    oldest_created_at: int | None = Field(description="of the live batches; null if none is live")
    at_risk: int = Field(description="batches in progress that may miss their completion window")
    late: int = Field(description="batches in progress that will probably miss their completion window")


class BatchCountsObject(BaseModel):
    """Numbers of batches of all tenants. A batch that ended before `ended_since` is not counted."""

    object: Literal["batch_counts"] = "batch_counts"
    statuses: dict[BatchStatus, int]
    oldest_created_at: int | None = Field(description="of the live batches; null if none is live")
    at_risk: int
    late: int
    ended_since: int
    tenants: list[TenantBatchCounts] = Field(description="sorted by name")


class DeadLetterError(BaseModel):
    """Last error of a line that failed after its last attempt.

    `status_code` is the status of the last HTTP response. If there was no response, `status_code` is null and
    `code` is not null.
    """

    status_code: int | None
    code: str | None
    message: str


class DeadLetterObject(BaseModel):
    """A line that failed after its last attempt.

    `id` is the same id as in the error file. `retried_as` is the id of the batch that retries the line; null
    if no batch retries it.
    """

    id: str
    object: Literal["dead_letter"] = "dead_letter"
    tenant: str
    batch_id: str
    custom_id: str
    model: str
    attempts: int
    error: DeadLetterError
    failed_at: int
    retried_as: str | None


class DeadLetterPage(ListPage[DeadLetterObject]):
    pass


class DeletedDeadLetter(BaseModel):
    id: str
    object: Literal["dead_letter"] = "dead_letter"
    deleted: Literal[True] = True


class DeadLetterRetryObject(BaseModel):
    """The result of retrying the dead letters of the batch `origin`.

    Dead letters are lines that failed after their last attempt. `batch_id` is the new batch that retries
    these lines. If no batch was created, `batch_id` is null, and `refused` has the reason.
    """

    tenant: str
    origin: str
    batch_id: str | None
    refused: str | None = None


class DeadLetterRetryPage(BaseModel):
    """Results of retrying the dead letters (failed lines) of several batches.

    If `has_more` is true, call again with `after` set to `last_id`.
    """

    object: Literal["list"] = "list"
    data: list[DeadLetterRetryObject]
    last_id: str | None
    has_more: bool


class RequestStats(BaseModel):
    """The numbers of requests to backends that have ended. Each retry counts as a request.

    If one request was sent for several lines, it counts once for each of these lines.
    """

    total: int
    success: int
    errors: int


class BackendStats(BaseModel):
    id: str = Field(description="URL of the backend")
    in_flight: int | None = Field(description="most requests that may be pending; null if nothing was set")
    requests: int
    average_latency_ms: float
    pending: int


class ModelStats(BaseModel):
    name: str
    lines_left: int = Field(description="lines of live batches that still need a final result")
    requests: int
    average_duration_ms: float
    tokens_per_second: float = Field(
        description="tokens of requests and responses, over about the last minute"
    )


class OpenCircuitObject(BaseModel):
    """An open circuit breaker: many requests for this model have failed at this backend.

    Workers now send only single test requests for the model to the backend.
    """

    model: str
    backend: str = Field(description="URL of the backend")
    workers: int = Field(description="how many workers have it open")


class StatsObject(BaseModel):
    """The totals of the requests of all live workers. Each worker counts from its start."""

    object: Literal["stats"] = "stats"
    uptime_seconds: int = Field(description="uptime of the API process that responds")
    workers: int
    requests: RequestStats
    backends: list[BackendStats] = Field(description="sorted by URL")
    models: list[ModelStats] = Field(description="sorted by requests, most first")
    open_circuits: list[OpenCircuitObject] = Field(description="sorted by model and backend")


class SettingObject(BaseModel):
    value: JsonValue
    origin: SettingSource


class BackendObject(BaseModel):
    url: str
    origin: SettingSource
    settings: dict[str, SettingObject]


class ModelSettingsObject(BaseModel):
    """A model with the settings that apply to it, and where each setting comes from.

    For example, a setting comes from the registry file, or from a change that an operator made at run time.
    """

    model: str
    source: Literal["file", "change", "listing"]
    version: int = Field(description="version of the run-time change, for If-Match; 0 if there is none")
    changed_at: datetime | None = Field(description="time of the run-time change")
    settings: dict[str, SettingObject]
    backends: list[BackendObject]
    change: dict[str, JsonValue] | None = Field(description="the run-time change")
    problems: list[str] = Field(description="parts of the change that are ignored, each with a remedy")


class RegisteredBackend(BaseModel):
    """A backend of a model.

    `model` is the model's name at this backend; null if the name is the same.
    """

    url: str
    weight: float
    model: str | None


class RegisteredModel(BaseModel):
    """A model in the model registry.

    `source` says how the model was registered: in the registry file, by an operator's change at run time, or
    because a backend lists it.
    """

    model: str
    source: ModelSource
    version: int = Field(description="version of the run-time change, for If-Match; 0 if there is none")
    changed_at: datetime | None = Field(description="time of the run-time change")
    backends: list[RegisteredBackend]
    aliases: list[str]
    fallbacks: list[str]
    load_balancing: LoadBalancing
    kind: ModelKind
    jobs: JobConfig | None = Field(description="null if the kind is sync")
    problems: list[str] = Field(description="parts of the change that are ignored, each with a remedy")


class RegisteredModels(BaseModel):
    object: Literal["list"] = "list"
    data: list[RegisteredModel]
    removed: list[str] = Field(description="models that were removed at run time")


class WorkerObject(BaseModel):
    """A live worker process, with its latest report about itself."""

    id: str = Field(description="host:pid")
    started_at: int | None = Field(description="Unix time in seconds")
    reported_at: int = Field(description="Unix time in seconds")
    in_flight: int = Field(description="requests that it has sent and that are not answered")
    slices: int = Field(description="slices that it runs")
    batches: int = Field(description="batches of these slices")
    queues: list[str] = Field(description="task queues that it polls, sorted")
    registry: str = Field(description="fingerprint of its model registry; workers in order have the same")


class WorkerList(BaseModel):
    object: Literal["list"] = "list"
    data: list[WorkerObject] = Field(description="sorted by id")


class KeyObject(BaseModel):
    """An API key without its secret. Times are Unix seconds."""

    id: str
    object: Literal["api_key"] = "api_key"
    tenant: str
    prefix: str = Field(description="visible part of the key, `bw_...`")
    scopes: list[str] = Field(description="`read`, `write`, `viewer`, `operator`, `admin`")
    label: str = Field(description="its purpose, in the words of its creator")
    created_at: int
    expires_at: int | None = Field(description="null: never")
    revoked_at: int | None
    last_used_at: int | None = Field(description="to the minute")


class CreatedKey(KeyObject):
    secret_key: str = Field(description="the whole key; it is not shown again, because only its hash is kept")


class KeyList(BaseModel):
    object: Literal["list"] = "list"
    data: list[KeyObject] = Field(description="sorted by tenant and creation")
