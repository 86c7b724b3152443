"""Types of the rows that are read from the tables or written to the tables."""

from datetime import datetime
from typing import Literal, NamedTuple, TypeVar

from pydantic import BaseModel, Field

from batchwright.contracts.message import Message
from batchwright.contracts.model_registry.price_config import DecimalText, PriceConfig
from batchwright.contracts.temporal_payloads.batch import (
    BatchForecast,
    BatchOrder,
    ErrorCount,
    ModelCounts,
    ModelUsage,
    StartForecast,
)
from batchwright.contracts.temporal_payloads.output_copies import OutputCopy
from batchwright.contracts.terms import (
    BatchStatus,
    GroupKind,
    HoldKind,
    UploadStatus,
    Usage,
    ValidationError,
)
from batchwright.database.driver import Row
from batchwright.rules.results.dead_letters import DeadLetter
from batchwright.rules.tenants.api_keys import SecretHash, is_usable
from batchwright.rules.tenants.quotas import BudgetGroup, DailyAmounts
from batchwright.rules.tenants.scopes import Scope
from batchwright.rules.token_costs import amount_of

_Model = TypeVar("_Model", bound=BaseModel)
Purpose = Literal["assistants", "batch", "fine-tune", "vision", "user_data", "evals", "batch_output"]


def parse_row(kind: type[_Model], record: Row) -> _Model:
    """Return an object of the class `kind`. Its fields are the columns of the database record."""
    return kind.model_validate(dict(record.items()))


class FileRow(Message):
    id: str
    tenant: str
    purpose: Purpose | Literal["calls"]  # "calls": the input of a rolling batch
    filename: str
    bytes: int
    created_at: datetime
    expires_at: datetime | None = None
    storage_key: str


class BatchRow(Message):
    """The row of a batch in the table of batches, with the status, times, counts and files of the batch.

    `order` is the argument that starts the batch's workflow: the input file, the endpoint, the completion
    window and so on.

    `status` is never `cancelling`. The API shows `cancelling` if `cancel_requested_at` is set and the batch
    has not ended.
    """

    order: BatchOrder
    status: BatchStatus
    in_progress_at: datetime | None = None
    finalizing_at: datetime | None = None
    completed_at: datetime | None = None
    failed_at: datetime | None = None
    expired_at: datetime | None = None
    cap_reached_at: datetime | None = None  # time at which the batch reached its cap on the cost
    cancel_requested_at: datetime | None = None
    cancelled_at: datetime | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    errors: list[ValidationError] = []
    models: list[ModelCounts] = []
    total: int = 0
    completed: int = 0  # in a batch that has not ended: as the workers last reported it, at most 5 s ago
    failed: int = 0
    usage: Usage = Usage()
    model_usage: list[ModelUsage] = []  # requests and tokens that cost something, by model
    prices: dict[str, PriceConfig] = {}  # by model, as they were when the input was validated
    results_kept_until: datetime | None = None  # set if it failed without files, or is being deleted
    output_copy: OutputCopy | None = None  # state of the copy; None until an attempt has ended
    files_pending_until: datetime | None = None  # set if the batch ended before its files were written
    ingestion_began_at: datetime | None = None
    errors_summary: list[ErrorCount] = []  # failed lines by code and model, most lines first
    ingestion_errors: list[ErrorCount] = []  # lines that failed in ingestion
    start_forecast: StartForecast | None = None
    forecast: BatchForecast | None = None  # only if it was read together with the waiting reasons

    @property
    def files_pending(self) -> bool:
        """True if the batch has ended but its output and error files are not written yet."""
        return self.files_pending_until is not None


class EndedBatch(NamedTuple):
    """Result of a method that ends a batch or adds files to an ended batch.

    `row` is the present row of the batch. `moved` is True if the method changed the row, and False if it
    changed nothing, for example because the batch had already ended.
    """

    row: BatchRow
    moved: bool


class SliceProgress(Message):
    """A worker's report about one slice (a part of a model's lines): its finished lines and its tokens.

    All counts are totals since the slice started. `number` identifies the slice within its model and batch.

    `attempt` is the number of the activity's attempt. When a workflow schedules the slice again, `generation`
    increases, and `attempt` starts at 1 again. A newer report replaces an older report. The report with the
    higher `generation` is newer. If both reports have the same `generation`, the report with the higher
    `attempt` is newer.
    """

    tenant: str
    batch_id: str
    model: str
    number: int
    generation: int
    attempt: int
    completed: int
    failed: int
    usage: Usage = Usage()
    errors: list[ErrorCount] = []  # their `model` is None


class BatchOutcome(Message):
    """Values to store at the end of a batch: final status, counts, files and dead letters.

    `dead_letters` are the lines that failed after their last attempt. `models` has the final counts of the
    models whose lines were sent to backends. If `models` is None, the last counts that workers reported
    become final.
    """

    status: BatchStatus
    completed: int
    failed: int
    usage: Usage
    model_usage: list[ModelUsage] = []
    models: list[ModelCounts] | None = None
    errors_summary: list[ErrorCount] = []
    output: FileRow | None = None
    error: FileRow | None = None
    errors: list[ValidationError] = []
    dead_letters: list[DeadLetter] = []


class Hold(NamedTuple):
    """A tenant or a model whose lines are not sent, because an operator stopped the sending at `held_at`."""

    kind: HoldKind
    name: str
    held_at: datetime


class WorkerHeartbeat(Message):
    """The latest report of a worker process about itself.

    `stats` has numbers by name. Some numbers are about the whole worker. Others are about a task queue of
    Temporal that the worker polls, or about running slices (parts of a batch) of one batch and model. See
    `rules/worker_stats.py` for the names.
    """

    id: str  # host:pid
    stats: dict[str, float]
    registry: str = ""  # fingerprint of the model registry that the worker uses
    beat_at: datetime
    started_at: datetime | None = None


class BackendLoad(NamedTuple):
    """The load on one backend from interactive calls. A client waits for the answer to an interactive call.

    `in_flight` is the number of requests that API processes have in flight to the backend for such calls.
    `mean` is the average of `in_flight` over about the last five seconds.
    """

    backend: str  # URL
    in_flight: int
    mean: float


class InteractiveRate(NamedTuple):
    """Requests and tokens per minute of interactive calls, for one tenant or one model.

    A client waits for the answer to an interactive call.

    Attributes:
        of_tenant: True for a tenant, False for a model.
        name: the tenant or the model.
        requests: requests per minute, as the average over about the last five seconds.
        tokens: tokens per minute, as the average over about the last five seconds.
        processes: number of API processes that send these calls.
    """

    of_tenant: bool
    name: str
    requests: float
    tokens: float
    processes: int = 1


class TenantRow(Message):
    name: str
    created_at: datetime
    disabled_at: datetime | None = None


class BudgetGroupRow(Message):
    """A budget group, whose members share daily budgets.

    - Organization: `members` are names of tenants. `tenant` is empty.
    - Team or user: `members` are ids of API keys of `tenant`.

    `tokens_per_day` is None if tokens are not limited. `cost_per_day` is None if the cost is not limited; it
    is in the currency in which the operator has set the prices of models.
    """

    kind: GroupKind
    tenant: str
    name: str
    created_at: datetime
    tokens_per_day: int | None = None
    cost_per_day: DecimalText | None = None
    members: list[str]

    @property
    def group(self) -> BudgetGroup:
        return BudgetGroup(self.kind, self.tenant, self.name)

    @property
    def budget(self) -> DailyAmounts:
        return DailyAmounts(self.tokens_per_day or 0, amount_of(self.cost_per_day or "0"))


class ApiKeyRow(Message):
    """An API key without its secret and without the hash of the secret. It is safe to show and to log."""

    id: str
    tenant: str
    prefix: str
    scopes: list[Scope]
    label: str = ""
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    last_used_at: datetime | None = None
    tokens_per_day: int | None = None  # None or 0: the key has no budget of its own
    cost_per_day: DecimalText | None = None  # the same, in the currency of the prices
    max_in_flight: int | None = None  # requests in flight in the whole fleet; None: no cap

    @property
    def budget(self) -> DailyAmounts:
        return DailyAmounts(self.tokens_per_day or 0, amount_of(self.cost_per_day or "0"))


class StoredApiKey(Message):
    """An API key with the hash of its secret. Never show or log the hash.

    `tenant_disabled_at` is None if the key's tenant is enabled.
    """

    key: ApiKeyRow
    secret_hash: SecretHash = Field(repr=False)
    tenant_disabled_at: datetime | None = None

    def is_usable(self, at: datetime) -> bool:
        return is_usable(
            at,
            expires_at=self.key.expires_at,
            revoked_at=self.key.revoked_at,
            disabled_at=self.tenant_disabled_at,
        )


class UploadRow(Message):
    """A file that a client uploads in parts.

    `status` is the stored status. It can stay `pending` after the upload has expired. `status_at` returns the
    status that users see.
    """

    id: str
    tenant: str
    purpose: Purpose
    filename: str
    mime_type: str
    bytes: int
    expires_after_seconds: int | None = None  # lifetime of the file once it is complete
    status: UploadStatus = "pending"
    created_at: datetime
    expires_at: datetime
    file_id: str | None = None
    completion: str | None = None  # digest of the list of parts with which the upload was completed

    def status_at(self, now: datetime) -> UploadStatus:
        """Return the status of the upload that users see at the time `now`.

        It is `expired` if the stored status is `pending` and `expires_at` has passed.
        """
        return "expired" if self.status == "pending" and self.expires_at <= now else self.status


class PartRow(Message):
    id: str
    tenant: str
    upload_id: str
    bytes: int
    storage_key: str
    created_at: datetime


class IdempotencyClaim(Message):
    """An idempotency key with the successful request that used it, and the object that the request created.

    Attributes:
        operation: kind of the object: batches, files or uploads.
        fingerprint: digest of the request. A later request with the same key is a repetition only if its
            fingerprint is the same.
        made: the object that the request created, as JSON.
    """

    tenant: str
    operation: str
    key: str
    fingerprint: str
    made: str
    created_at: datetime
