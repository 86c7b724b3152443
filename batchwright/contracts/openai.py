"""The vocabulary of OpenAI's Batches and Files that every part shares."""

from enum import StrEnum

from batchwright.contracts.message import Message


class BatchStatus(StrEnum):
    VALIDATING = "validating"
    FAILED = "failed"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"  # never stored: shown while a live batch has `cancel_requested_at`
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        return self in (BatchStatus.FAILED, BatchStatus.COMPLETED, BatchStatus.EXPIRED, BatchStatus.CANCELLED)


class Endpoint(StrEnum):
    RESPONSES = "/v1/responses"
    CHAT_COMPLETIONS = "/v1/chat/completions"
    EMBEDDINGS = "/v1/embeddings"
    COMPLETIONS = "/v1/completions"
    MODERATIONS = "/v1/moderations"
    IMAGES_GENERATIONS = "/v1/images/generations"
    IMAGES_EDITS = "/v1/images/edits"
    VIDEOS = "/v1/videos"


class Profile(StrEnum):
    """`relaxed` accepts more than OpenAI does (windows, lines without url or method); `strict` does not."""

    RELAXED = "relaxed"
    STRICT = "strict"


class Usage(Message):
    """Tokens as the backends reported them, summed; what was not reported counts as zero."""

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
    """One entry of a failed batch's `errors.data`; `line` is 1-based."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None
