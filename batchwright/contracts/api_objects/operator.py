"""Objects of the API for operators, and the limits that every caller can read."""

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, Field, JsonValue

from batchwright.contracts.api_objects.openai import BatchObject
from batchwright.contracts.model_registry.backend_job_config import JobConfig, ModelKind
from batchwright.contracts.model_registry.price_config import DecimalText
from batchwright.contracts.model_registry.registry_config import LoadBalancing, ModelSource, SettingSource
from batchwright.contracts.terms import (
    ActivityState,
    AdmissionPolicy,
    BatchStatus,
    GroupKind,
    OverQuota,
    Quota,
)


class LimitObject(BaseModel):
    """A limit, and how much of it is used. Amounts of `cost_per_day` are decimal strings."""

    quota: Quota
    limit: int | str | None = Field(description="null if there is no limit")
    used: int | str
    left: int | str | None = Field(description="null if there is no limit")


class GroupLimit(LimitObject):
    kind: GroupKind
    name: str


class LimitsObject(BaseModel):
    object: Literal["limits"] = "limits"
    tenant: str
    data: list[LimitObject]
    key: list[LimitObject] = Field(description="budgets of the calling API key; empty without a key")
    groups: list[GroupLimit] = Field(
        description="budgets that are shared: with all tenants of the organization, with all keys of the "
        "calling key's team and user"
    )
    max_lines: int = Field(description="requests that a batch may have")
    max_batch_file_bytes: int = Field(description="bytes that an input file may have")
    models: list[str] | None = Field(description="models that may be used; null allows every model")
    weight: float = Field(description="share of the workers, relative to the weights of other tenants")
    max_in_flight: int | None = Field(
        description="requests that may be in flight at once, over all workers, but at least one for each "
        "worker that runs the tenant's slices; null if there is no cap"
    )
    max_priority: int = Field(description="highest priority that a batch may have")
    over_quota: OverQuota = Field(
        description="whether a batch over the quota of enqueued lines or tokens fails or waits"
    )
    admission: AdmissionPolicy = Field(
        description="whether a batch that cannot be done within its completion window is accepted or refused"
    )
    backend_requests_per_minute: int | None = Field(
        description="requests that all workers send to backends per minute; null if there is no limit"
    )
    backend_tokens_per_minute: int | None = Field(
        description="tokens that these requests use per minute; null if there is no limit"
    )


class DefaultQuotas(BaseModel):
    """Quotas for tenants without quotas of their own. `0` means no limit."""

    live_batches: int
    stored_bytes: int
    enqueued_lines: int
    enqueued_tokens: int
    requests_per_minute: int
    tokens_per_day: int
    cost_per_day: DecimalText
    webhooks: int


class QuotaObject(BaseModel):
    """Quotas, weight and limits that were set for one tenant. `0` means no limit.

    `null` means that nothing was set, so the default applies. The default of `models` is every model.
    `max_in_flight`, `backend_requests_per_minute` and `backend_tokens_per_minute` have no limit by default.
    """

    tenant: str
    live_batches: int | None
    stored_bytes: int | None
    enqueued_lines: int | None
    enqueued_tokens: int | None
    requests_per_minute: int | None
    tokens_per_day: int | None
    cost_per_day: DecimalText | None = Field(description="in the currency of the prices")
    webhooks: int | None
    models: list[str] | None
    weight: float | None = Field(description="share of the workers, relative to the weights of other tenants")
    max_in_flight: int | None = Field(description="requests in flight at once, over all workers")
    max_priority: int | None = Field(description="highest priority that a batch may have")
    over_quota: OverQuota | None = Field(
        description="whether a batch over the quota of enqueued lines or tokens fails (the default) or waits"
    )
    admission: AdmissionPolicy | None = Field(
        description="whether a batch that cannot be done within its completion window is accepted (the "
        "default) or refused"
    )
    backend_requests_per_minute: int | None = Field(description="requests sent to backends per minute")
    backend_tokens_per_minute: int | None = Field(description="tokens of these requests per minute")
    changed_at: datetime


class QuotaList(BaseModel):
    object: Literal["list"] = "list"
    defaults: DefaultQuotas
    data: list[QuotaObject]


class BudgetGroupObject(BaseModel):
    object: Literal["budget_group"] = "budget_group"
    kind: GroupKind
    tenant: str | None = Field(description="tenant of a team or user; null for an organization")
    name: str
    tokens_per_day: int | None = Field(description="token budget; null if there is none")
    tokens_used: int = Field(description="tokens that all its members used today (UTC)")
    cost_per_day: DecimalText | None = Field(description="budget in the currency of the prices; null if none")
    cost_used: str = Field(description="cost of the lines of all its members today (UTC)")
    members: list[str] = Field(description="tenants of an organization; key ids of a team or user")
    created_at: datetime


class BudgetGroupList(BaseModel):
    object: Literal["list"] = "list"
    data: list[BudgetGroupObject]


class RateObject(BaseModel):
    """A rate limit that applies now, in requests per second. `0` means no limit.

    `model` is null for the limit over all models together.
    """

    model: str | None
    requests_per_second: float
    source: Literal["setting", "change"]
    queue: str = Field(description="task queue that enforces it")


class RateList(BaseModel):
    object: Literal["list"] = "list"
    data: list[RateObject]
    shared_requests_per_second: float | None = Field(
        description="shared by the models without their own rate; null without a rate over all models"
    )


class HoldObject(BaseModel):
    """Record that an operator has stopped the sending of all lines of a tenant or of a model.

    If it is for a tenant, `model` is null. If it is for a model, `tenant` is null.
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


class OperatorBatchPage(BaseModel):
    object: Literal["list"] = "list"
    data: list[OperatorBatch]
    first_id: str | None
    last_id: str | None
    has_more: bool


class PendingObject(BaseModel):
    """An activity of a batch's workflow that runs or waits: a step of the batch, or the sending of some of
    its lines.
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

    `status_code` is the status of the last HTTP response. If there was no response, it is null and `code` is
    set.
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


class DeadLetterPage(BaseModel):
    object: Literal["list"] = "list"
    data: list[DeadLetterObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedDeadLetter(BaseModel):
    id: str
    object: Literal["dead_letter"] = "dead_letter"
    deleted: Literal[True] = True


class DeadLetterRetryObject(BaseModel):
    """Result of retrying the dead letters (lines that failed after their last attempt) of the batch `origin`.

    `batch_id` is the new batch that retries them. If no batch was created, it is null, and `refused` has the
    reason.
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
    """Numbers of completed requests to backends. Retries count as requests.

    A request that several lines share counts once for each line.
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
    """A circuit breaker that is open: for this model, workers send only test requests to this backend."""

    model: str
    backend: str = Field(description="URL of the backend")
    workers: int = Field(description="how many workers have it open")


class StatsObject(BaseModel):
    """Totals of all live workers. Each worker counts from its start."""

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
    """A model with the settings that apply to it, and where each setting comes from."""

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
    """A model in the registry.

    `source` says how the model was registered: in the registry file, by a change at run time, or because a
    backend lists it.
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
