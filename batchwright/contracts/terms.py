"""Terms of the HTTP API that all processes share, such as statuses and endpoints. Most are OpenAI's."""

from enum import StrEnum
from typing import Literal

from batchwright.contracts.message import Message


class BatchStatus(StrEnum):
    VALIDATING = "validating"
    FAILED = "failed"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"  # never stored; shown while a live batch has `cancel_requested_at`
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        return self in (BatchStatus.FAILED, BatchStatus.COMPLETED, BatchStatus.EXPIRED, BatchStatus.CANCELLED)


UploadStatus = Literal["pending", "completed", "cancelled", "expired"]


class Endpoint(StrEnum):
    RESPONSES = "/v1/responses"
    CHAT_COMPLETIONS = "/v1/chat/completions"
    EMBEDDINGS = "/v1/embeddings"
    COMPLETIONS = "/v1/completions"
    MODERATIONS = "/v1/moderations"
    IMAGES_GENERATIONS = "/v1/images/generations"
    IMAGES_EDITS = "/v1/images/edits"
    VIDEOS = "/v1/videos"
    MESSAGES = "/v1/messages"
    SCORE = "/v1/score"
    RERANK = "/v1/rerank"

    @property
    def is_openais(self) -> bool:
        """True if OpenAI's API has this endpoint; False if only inference servers or Anthropic have it."""
        return self not in (Endpoint.MESSAGES, Endpoint.SCORE, Endpoint.RERANK)


class Profile(StrEnum):
    """How strictly requests and input files are checked.

    `strict` accepts only what OpenAI accepts. `relaxed` accepts more, for example other completion windows,
    and lines without `url` or `method`.
    """

    RELAXED = "relaxed"
    STRICT = "strict"


class Quota(StrEnum):
    """Names of the quotas, as used in the API and in the settings."""

    LIVE_BATCHES = "live_batches"
    STORED_BYTES = "stored_bytes"
    ENQUEUED_LINES = "enqueued_lines"
    ENQUEUED_TOKENS = "enqueued_tokens"
    REQUESTS_PER_MINUTE = "requests_per_minute"
    TOKENS_PER_DAY = "tokens_per_day"
    COST_PER_DAY = "cost_per_day"
    WEBHOOKS = "webhooks"


class OverQuota(StrEnum):
    """Rule for a batch that would exceed its tenant's quota of enqueued lines or tokens."""

    FAIL = "fail"
    WAIT = "wait"  # the batch stays in validation until the quota allows it


class WindowTooShort(StrEnum):
    """The rule for a batch whose forecast says that it cannot end within its completion window."""

    ACCEPT = "accept"
    REFUSE = "refuse"  # the batch fails before a line is sent


class HoldKind(StrEnum):
    """The kinds of holds. With a hold, an operator stops the sending of all lines of a tenant or a model."""

    TENANT = "tenant"
    MODEL = "model"


class GroupKind(StrEnum):
    """Kinds of budget groups. The members of a budget group share daily budgets.

    The members of an organization are tenants. The members of a team or a user are API keys of one tenant.
    """

    ORGANIZATION = "organization"
    TEAM = "team"
    USER = "user"


class Usage(Message):
    """Number of tokens used, as reported by backends. A number that a backend did not report counts as 0."""

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            reasoning_tokens=self.reasoning_tokens + other.reasoning_tokens,
        )


class ValidationError(Message):
    """One error of a failed batch, as in `errors.data` of the batch object.

    `line` is the line number in the input file, starting at 1. It is None if the error is not about one line.
    """

    code: str
    message: str
    param: str | None = None
    line: int | None = None


class ActivityState(StrEnum):
    """The state of an activity of Temporal that has not ended."""

    QUEUED = "queued"  # until a worker takes it
    RUNNING = "running"
    WAITING = "waiting"  # until its next attempt
    STOPPING = "stopping"  # running, after its cancellation was requested
    PAUSED = "paused"  # in Temporal, by an operator
