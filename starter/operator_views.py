"""What the API answers to operators, as far as the command line reads it; the rest is kept for `--json`."""

from pydantic import Field

from starter.views import View


class Rate(View):
    """Requests/s, 0: no limit; `model` is None for the rate over all models."""

    model: str | None
    requests_per_second: float
    source: str


class RatePage(View):
    data: list[Rate]
    shared_requests_per_second: float | None = None


class TenantLimit(View):
    """`limit` None: there is none."""

    quota: str
    limit: int | None
    used: int
    left: int | None


class TenantLimits(View):
    """What holds for a tenant; `models` None: every one."""

    tenant: str
    data: list[TenantLimit]
    models: list[str] | None


class OwnQuotas(View):
    """What a tenant has of its own; None: the default, 0: no limit."""

    tenant: str
    live_batches: int | None
    stored_bytes: int | None
    enqueued_lines: int | None
    enqueued_tokens: int | None
    requests_per_minute: int | None
    tokens_per_day: int | None = None
    models: list[str] | None


class QuotaPage(View):
    data: list[OwnQuotas]


class LetterError(View):
    status_code: int | None
    code: str | None
    message: str


class Letter(View):
    """A line that failed after its last attempt; `retried_as` is the batch that asks it again."""

    id: str
    tenant: str
    batch_id: str
    custom_id: str
    model: str
    attempts: int
    error: LetterError
    failed_at: int
    retried_as: str | None


class LetterPage(View):
    data: list[Letter]
    has_more: bool = False
    last_id: str | None = None


class DeletedLetter(View):
    deleted: bool


class RequestStats(View):
    total: int
    success: int
    errors: int


class BackendStats(View):
    id: str
    requests: int
    average_latency_ms: float
    pending: int


class ModelStats(View):
    name: str
    requests: int
    average_duration_ms: float


class Stats(View):
    """What the workers that are alive have sent since they started."""

    uptime_seconds: int
    workers: int
    requests: RequestStats
    backends: list[BackendStats] = Field(default_factory=list[BackendStats])
    models: list[ModelStats] = Field(default_factory=list[ModelStats])


class Retried(View):
    """`batch_id` None: `refused` says why there is none."""

    tenant: str
    origin: str
    batch_id: str | None
    refused: str | None = None


class RetriedPage(View):
    data: list[Retried]
    has_more: bool = False
    last_id: str | None = None


class Place(View):
    """A backend of a model; `model` is its name there, None: the same."""

    url: str
    weight: float = 1.0
    model: str | None = None


class RegisteredModel(View):
    model: str
    source: str
    backends: list[Place] = Field(default_factory=list[Place])
    aliases: list[str] = Field(default_factory=list[str])
    fallbacks: list[str] = Field(default_factory=list[str])
    kind: str = "sync"
    problems: list[str] = Field(default_factory=list[str])


class RegisteredModels(View):
    """`removed` were taken away at run time."""

    data: list[RegisteredModel] = Field(default_factory=list[RegisteredModel])
    removed: list[str] = Field(default_factory=list[str])
