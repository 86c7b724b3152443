"""Messages of a batch's workflow: its start argument, waiting reasons, its state and its result."""

from datetime import datetime, timedelta
from enum import StrEnum
from typing import Self

from batchwright.contracts.calls import RollingBatch
from batchwright.contracts.message import Message
from batchwright.contracts.model_registry.price_config import DecimalText
from batchwright.contracts.terms import BatchStatus, Endpoint, Profile, Usage

MIN_PRIORITY, DEFAULT_PRIORITY, MAX_PRIORITY = 1, 3, 5  # 5 is the most urgent
SAFETY_MARGIN = timedelta(days=7)
SCHEDULED = "scheduled"  # reason why a batch waits before its `start_at`


class Caller(Message):
    """The caller who created a batch: the id of the API key, and request headers to send to backends.

    The fields contain no credentials.
    """

    key_id: str = ""  # id of the API key; empty if there was none
    headers: dict[str, str] = {}  # headers to pass on, by lower-case name


class BatchPolicy(Message):
    """Operator settings that apply to one batch.

    The values are copied when the batch is created, because workflows must not read settings.
    """

    profile: Profile = Profile.RELAXED
    cancel_grace_seconds: float = 30.0
    expiry_grace_seconds: float = 5.0
    finalize_patience_seconds: float = 86_400.0
    heartbeat_timeout_seconds: float = 30.0
    slice_seconds: float = 30.0  # length of a turn, which is one attempt to send a slice
    outstanding_slices: int = 32  # slices scheduled at once per model, unless the model has many workers
    fairness_key: str = ""  # fairness key of the batch's slices in Temporal; empty for the tenant's name
    # Weight of the tenant, if it was set at run time before the batch was created; None: `BatchOrder.weight`.
    fairness_weight: float | None = None
    deduplicate: bool = False  # send equal requests only once
    caller: Caller = Caller()
    # Number of requests of a batch that was created as a message batch; 0 for all other batches. In a message
    # batch, a request that is not valid fails alone, and the limits of message batches apply.
    message_requests: int = 0
    rolling: RollingBatch | None = None  # set if the lines of the batch are single calls
    # Number of history events after which a model run hands its slices over to another one; `0`: when the
    # server suggests that the workflow continues as new.
    hand_over_events: int = 0
    # From a quarter of this number of history events on, pauses of the model runs are spread over the rest of
    # the window, so that they end at this number. It is less than the 51,200 events that Temporal allows.
    max_change_events: int = 40_000

    @property
    def lines_fail_alone(self) -> bool:
        """True if an invalid line fails alone. False if an invalid line makes the whole batch fail."""
        return self.message_requests > 0 or self.rolling is not None

    def weight_or(self, default: float) -> float:
        """Return the weight that an operator has set for the tenant, or `default` if none was set."""
        return default if self.fairness_weight is None else self.fairness_weight


class RerunKind(StrEnum):
    """The ways to create a new batch from an ended batch: retry it, or resume it.

    To retry a batch means to send its failed lines again. To resume a batch means to send only the lines that
    have no result yet.
    """

    RETRY = "retry"  # its input is the failed lines of the other batch
    RESUME = "resume"  # same input; it copies the results of the other batch


class SourceBatch(Message):
    """The ended batch that a new batch retries or resumes."""

    batch_id: str
    kind: RerunKind
    codes: list[str] = []  # error codes of the lines that are retried, sorted; empty for all failed lines


class BatchOrder(Message):
    """The start argument of a batch's workflow. It describes the whole batch.

    Times are in UTC, in whole seconds. The batch starts at `start_at`. If `start_at` is None, the batch
    starts when it is created. `deadline` is the start plus the completion window (the time that the batch may
    take).
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
    weight: float = 1.0  # weight of the tenant, from the settings
    priority: int = DEFAULT_PRIORITY  # relative to other batches of the tenant
    max_cost: DecimalText | None = None  # cap on the cost, in the currency of the prices
    policy: BatchPolicy = BatchPolicy()
    origin: SourceBatch | None = None
    start_at: datetime | None = None
    # URL of the object from which ingestion makes the input file; None if the file was uploaded.
    input_location: str | None = None
    # URL of the prefix under which the output and error files are also written; None: only in the storage.
    output_location: str | None = None

    @property
    def starts_at(self) -> datetime:
        """Time at which the completion window (the time that the batch may take) begins."""
        return self.start_at or self.created_at

    def started_later(self, at: datetime) -> Self:
        """Return a copy in which the batch is created at the time `at`.

        The batch in the copy starts at the later of `at` and `start_at`. The deadline moves with the start,
        so that the completion window stays equally long.
        """
        starts_at = max(self.start_at, at) if self.start_at else None
        deadline = (starts_at or at) + (self.deadline - self.starts_at)
        return self.model_copy(update={"created_at": at, "start_at": starts_at, "deadline": deadline})

    @property
    def summary(self) -> str:
        """Text that Temporal's Web UI shows as the summary of the workflow."""
        return f"{self.endpoint} within {self.completion_window}, for tenant {self.tenant}"

    @property
    def longest_run(self) -> timedelta:
        """Time after which Temporal ends the workflow, even if no worker runs.

        Usually the workflow ends earlier by its own timers. But these timers have no effect while no worker
        runs.
        """
        finalizing = timedelta(seconds=self.policy.finalize_patience_seconds)
        return self.deadline - self.created_at + finalizing + SAFETY_MARGIN

    @property
    def fairness_weight(self) -> float:
        """Weight of the tenant in Temporal. A greater weight means a greater part of the workers."""
        return self.policy.weight_or(self.weight)


class BatchResult(Message):
    """The result of a batch's workflow: final status, line counts and token usage, as in the database."""

    status: BatchStatus
    total: int = 0
    completed: int = 0
    failed: int = 0
    usage: Usage = Usage()


class ModelCounts(Message):
    """Number of lines of one model in a batch, and how many of them have completed and failed so far."""

    model: str
    lines: int
    completed: int = 0
    failed: int = 0
    duplicates: int = 0  # lines that get the result of an equal line


class ModelUsage(Usage):
    """Number of successful requests of one model in a batch, and the tokens that they used.

    A line that gets the result of another line or batch is not sent, and is not counted here.
    """

    model: str
    requests: int = 0


class ErrorExample(Message):
    """Example of a failed line: its `custom_id`, and its error message, cut to 300 characters."""

    custom_id: str = ""
    message: str = ""


class ErrorCount(Message):
    """The number of failed lines of a batch with the same error code, and one of these lines as an example.

    `code` is the `error.code` of these lines in the error file. For lines with an HTTP response, `code` is
    `http_` and the status, for example `http_400`. `model` is null if the lines of all models are counted
    together.
    """

    code: str
    model: str | None = None
    count: int
    example: ErrorExample = ErrorExample()


class WaitingReason(Message):
    """A worker's report to the batch's workflow about why the lines of a model wait.

    An empty `reason` means that the lines no longer wait. An empty `model` means all models of the batch.
    A slice is a part of a model's lines. If `fleet_wide` is False, the reason concerns only one slice.

    The workflow deletes the report at one of these times:

    - If `fleet_wide` is False: when the workflow learns that any slice of the model is finished.
    - In all cases: when all model runs (workflows that send the model's lines) have ended.
    """

    model: str
    reason: str = ""
    since: datetime | None = None
    fleet_wide: bool = False


class WindowFit(StrEnum):
    """The forecast for a running batch: it probably ends in time, may be late, or is probably late.

    In time means within its completion window.
    """

    FITS = "fits"  # in time with a probability of at least 90 %
    AT_RISK = "at_risk"  # in time with a probability of 50 % to 90 %
    LATE = "late"


class BatchForecast(Message):
    """A forecast, made at `made_at`, of the time at which the last line of a batch gets its result.

    With a probability of 50 %, the batch ends within `p50_seconds` after `made_at`; with 90 %, within
    `p90_seconds`.
    """

    made_at: datetime
    lines_per_second: float  # present rate of this batch
    lines_ahead: int  # lines of other batches that are sent before this batch's last line
    p50_seconds: float
    p90_seconds: float
    window: WindowFit

    def seconds_left(self, at: datetime) -> tuple[float, float]:
        """Return how many seconds of `p50_seconds` and of `p90_seconds` are left at the time `at`.

        Both periods begin at `made_at`. The result for a period that is over is 0.
        """
        age = (at - self.made_at).total_seconds()
        return max(self.p50_seconds - age, 0.0), max(self.p90_seconds - age, 0.0)


class StartFit(StrEnum):
    """The forecast before a batch begins: it probably ends in time, may be late, or cannot end in time.

    In time means within its completion window.
    """

    FITS = "fits"  # in time with a probability of at least 90 %
    AT_RISK = "at_risk"
    CANNOT = "cannot"  # the batch is late even in the best case


class StartForecast(Message):
    """The forecast of a batch, made once, after its input was validated and before its first line is sent.

    With a probability of 50 %, the batch ends within `p50_seconds` after `made_at`; with 90 %, within
    `p90_seconds`. In the best case it takes `soonest_seconds`. `refused` is True if the batch was refused,
    because even in the best case it would take longer than its completion window allows.
    """

    made_at: datetime
    window: StartFit
    p50_seconds: float
    p90_seconds: float
    soonest_seconds: float
    lines_ahead: int  # lines of other batches that are sent before this batch's last line
    refused: bool = False


class ModelProgress(Message):
    """The progress of one model of a batch: how many of the model's slices (parts of its lines) are done.

    `lines` and `slices` count all lines and slices of the model. `slices_done` counts finished slices:

    - In the result of the query `state` of the batch's workflow, all finished slices of the model.
    - In a signal from a model run (workflow that sends lines of the model) to the batch's workflow, only the
      slices that this model run has finished. `run` is the number of the model run.
    """

    model: str
    run: int = 1
    lines: int
    slices: int
    slices_done: int = 0


class BatchState(Message):
    """The result of the query `state`, which a batch's workflow answers for operators and tests."""

    status: BatchStatus
    paused: bool = False
    cancel_requested: bool = False
    files_pending: bool = False  # the batch has ended, but its files are not written yet
    models: list[ModelProgress] = []
    waiting: list[WaitingReason] = []
    forecast: BatchForecast | None = None  # as a control worker reported it last
    failed_by_code: dict[str, int] = {}  # number of failed lines by error code, once the files are written
