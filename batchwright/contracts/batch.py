"""Messages of a batch's workflow: its start argument, waiting reasons, its state and its result."""

from datetime import datetime
from enum import StrEnum

from batchwright.contracts.message import Message
from batchwright.contracts.openai import BatchStatus, Endpoint, Profile, Usage

MIN_PRIORITY, DEFAULT_PRIORITY, MAX_PRIORITY = 1, 3, 5  # of a batch; the highest number is the most urgent


class Caller(Message):
    """The creator of a batch: the id of its API key, and the headers that are passed on to backends.

    It never contains a credential.
    """

    key_id: str = ""  # id of the API key; empty if there was none
    headers: dict[str, str] = {}  # headers to pass on, by lower-case name


class BatchPolicy(Message):
    """Operator settings for one batch.

    They are copied at its start, because workflows must not read settings.
    """

    profile: Profile = Profile.RELAXED
    cancel_grace_seconds: float = 30.0
    expiry_grace_seconds: float = 5.0
    finalize_patience_seconds: float = 86_400.0
    heartbeat_timeout_seconds: float = 30.0
    slice_seconds: float = 30.0  # length of a slice's turn
    outstanding_slices: int = 32  # slices scheduled at once per model, unless the model has many workers
    fairness_key: str = ""  # fairness key of the batch's slices in Temporal; empty for the tenant's name
    # Weight of the tenant that was set at run time before the batch was created; None for the order's weight.
    fairness_weight: float | None = None
    deduplicate: bool = False  # send equal requests only once
    caller: Caller = Caller()
    # History length at which a model run continues as new; `0`: when the server suggests it.
    continue_as_new_events: int = 0

    def weight_or(self, default: float) -> float:
        """Return the weight that was set at run time, or `default` if none was."""
        return default if self.fairness_weight is None else self.fairness_weight


class RerunKind(StrEnum):
    """How a batch was created from another one that has ended."""

    RETRY = "retry"  # its input is the failed lines of the other batch
    RESUME = "resume"  # same input; it takes over the results of the other batch


class SourceBatch(Message):
    """The batch from which another one was created."""

    batch_id: str
    kind: RerunKind
    codes: list[str] = []  # error codes of the lines that are retried, sorted; empty for all failed lines


class BatchOrder(Message):
    """Start argument of a batch's workflow. It describes the whole batch.

    Times are in UTC, in whole seconds. `deadline` is `created_at` plus the completion window.
    """

    batch_id: str
    tenant: str
    input_file_id: str
    endpoint: Endpoint
    completion_window: str  # as the client wrote it
    created_at: datetime
    deadline: datetime
    metadata: dict[str, str] | None = None
    output_expires_after_seconds: int | None = None
    weight: float = 1.0  # of the tenant, from the settings
    priority: int = DEFAULT_PRIORITY  # relative to other batches of the tenant
    policy: BatchPolicy = BatchPolicy()
    origin: SourceBatch | None = None

    @property
    def fairness_weight(self) -> float:
        """Weight by which Temporal shares the workers between the tenants."""
        return self.policy.weight_or(self.weight)


class BatchResult(Message):
    """Result of a batch's workflow: the final status and counts. The batch's row has the same values."""

    status: BatchStatus
    total: int = 0
    completed: int = 0
    failed: int = 0
    usage: Usage = Usage()


class ModelCounts(Message):
    """Lines of one model in a batch, and how many of them have settled so far."""

    model: str
    lines: int
    completed: int = 0
    failed: int = 0
    duplicates: int = 0  # lines that get the result of an equal line


class ErrorExample(Message):
    """One of several lines that failed with the same code. The message is cut to 300 characters."""

    custom_id: str = ""
    message: str = ""


class ErrorCount(Message):
    """Number of failed lines with the same error code, and one of them as an example.

    `code` is the `error.code` of these lines in the error file, or `http_` and the status if the backend
    answered, for example `http_400`. `model` is null if the lines are counted over several models.
    """

    code: str
    model: str | None = None
    count: int
    example: ErrorExample = ErrorExample()


class WaitingReason(Message):
    """Why a model's slices wait, as reported by a worker. An empty `reason` means that they no longer wait.

    An empty `model` stands for the whole batch. A reason normally ends when lines of the model are settled. A
    `fleet_wide` reason stays until it is cleared.
    """

    model: str
    reason: str = ""
    since: datetime | None = None
    fleet_wide: bool = False


class WindowFit(StrEnum):
    """Whether a batch will be done within its completion window, by its forecast."""

    FITS = "fits"  # with a probability of 90 %
    AT_RISK = "at_risk"  # more likely than not
    LATE = "late"


class BatchForecast(Message):
    """Forecast of when the last line of a batch is settled, as of `made_at`.

    Half of the batches are done within `p50_seconds`, and 90 % within `p90_seconds`.
    """

    made_at: datetime
    lines_per_second: float  # of this batch at present
    lines_ahead: int  # lines of other batches that are sent before this batch's last line
    p50_seconds: float
    p90_seconds: float
    window: WindowFit

    def seconds_left(self, at: datetime) -> tuple[float, float]:
        """Return how much of `p50_seconds` and `p90_seconds` is left at the time `at`, each at least 0."""
        age = (at - self.made_at).total_seconds()
        return max(self.p50_seconds - age, 0.0), max(self.p90_seconds - age, 0.0)


class ModelProgress(Message):
    model: str
    lines: int
    slices: int
    slices_done: int = 0


class BatchState(Message):
    """Result of the workflow's `state` query, for operators and tests."""

    status: BatchStatus
    paused: bool = False
    cancel_requested: bool = False
    files_pending: bool = False  # the batch has ended, but its files are not written yet
    models: list[ModelProgress] = []
    waiting: list[WaitingReason] = []
    forecast: BatchForecast | None = None  # as a control worker reported it last
    failed_by_code: dict[str, int] = {}  # number of failed lines by error code, once the files are written
