"""What the API answers, as far as the command line reads it; the rest is kept for `--json`.

What it answers to operators is in `operator_views.py`.
"""

from pydantic import BaseModel, ConfigDict

from batchwright.contracts.openai import BatchStatus


class View(BaseModel):
    model_config = ConfigDict(frozen=True, extra="allow")


class Counts(View):
    total: int = 0
    completed: int = 0
    failed: int = 0

    @property
    def settled(self) -> int:
        return self.completed + self.failed


class ModelPart(View):
    """A model's lines in a batch, and how many have settled."""

    model: str
    lines: int
    completed: int = 0
    failed: int = 0


class Origin(View):
    """The ended batch that another retries or resumes."""

    batch_id: str
    chance: str


class Waiting(View):
    """`model` is None for the whole batch; `since` is in Unix seconds."""

    model: str | None = None
    reason: str
    since: int | None = None


class Extension(View):
    """The key `x_batchwright` of a batch: ours, beside the contract."""

    models: list[ModelPart] = []
    paused: bool | None = None
    waiting: list[Waiting] | None = None
    origin: Origin | None = None


class Problem(View):
    code: str | None = None
    message: str = ""
    param: str | None = None
    line: int | None = None


class Problems(View):
    data: list[Problem] = []


class TokenCounts(View):
    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0


class Batch(View):
    """Times are Unix seconds."""

    id: str
    status: BatchStatus
    endpoint: str
    input_file_id: str
    completion_window: str
    created_at: int
    expires_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelled_at: int | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    errors: Problems | None = None
    request_counts: Counts = Counts()
    usage: TokenCounts | None = None
    metadata: dict[str, str] | None = None
    x_batchwright: Extension | None = None

    @property
    def ended_at(self) -> int | None:
        ends = (self.completed_at, self.failed_at, self.expired_at, self.cancelled_at)
        return next((end for end in ends if end is not None), None)

    @property
    def is_paused(self) -> bool:
        """Lists do not tell."""
        return bool(self.x_batchwright and self.x_batchwright.paused)

    @property
    def waiting(self) -> list[Waiting]:
        """Why it waits, where it does."""
        return (self.x_batchwright.waiting or []) if self.x_batchwright else []

    @property
    def parts(self) -> list[ModelPart]:
        """Per model; none before validation has counted them, or where the API does not tell."""
        return self.x_batchwright.models if self.x_batchwright else []


class BatchPage(View):
    data: list[Batch]
    has_more: bool = False
    last_id: str | None = None


class FileObject(View):
    id: str
    bytes: int
    filename: str


class DeletedFile(View):
    id: str
    deleted: bool
