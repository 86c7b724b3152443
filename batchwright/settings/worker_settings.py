"""Settings of workers: concurrency, memory, shutdown, and request rates of models."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic_settings import BaseSettings

from batchwright.rules.limits.rate_allocation import (
    ALL_MODELS,
    MAX_RATE,
    MIN_RATE,
    RatesConflict,
    effective_rates,
)
from batchwright.settings.setting_levels import START, TUNING

_MIB = 1024 * 1024


class ModelLimits(BaseModel):
    """The limits of one model. They replace the default limits.

    - `requests_per_second` limits the requests that all workers together send per second.
    - `in_flight` limits the requests that each worker has in flight at the same time.
    - `inputs_per_request` limits the lines of `/v1/embeddings` in one request.
    - `chat_executor` is a reference `module:attribute` to code that joins several chats into one request.
    """

    model_config = ConfigDict(extra="forbid")

    in_flight: int | None = Field(None, ge=1)
    capacity_fraction: float | None = Field(None, gt=0, le=1)
    requests_per_second: float | None = Field(None, ge=MIN_RATE, le=MAX_RATE)
    inputs_per_request: int = Field(1, ge=1, le=2048)
    input_tokens_per_request: int = Field(32_000, ge=1)  # estimated
    chat_executor: str = ""


class WorkerSettings(BaseSettings):
    io_slots: int = Field(
        2,
        ge=1,
        description="Number of ingestions and finalizations that a worker runs at once.",
        json_schema_extra=TUNING,
    )
    global_in_flight: int = Field(
        100,
        ge=1,
        description="Maximum number of requests that a worker has in flight at once, over all models.",
        json_schema_extra=TUNING,
    )
    model_in_flight: int = Field(
        10,
        ge=1,
        description="Maximum number of requests that a worker has in flight at once for each model.",
        json_schema_extra=START,
    )
    adaptive_limits: bool = Field(
        True,
        description="If true, the number of requests in flight at a backend follows how it responds, up "
        "to `BATCHWRIGHT_GLOBAL_IN_FLIGHT`. If false, only the fixed limits apply.",
    )
    capacity_fraction: float = Field(
        1.0,
        gt=0,
        le=1,
        description="Share of a model's requests in flight that batches may use, above 0 and up to 1. The "
        "rest is left to interactive traffic.",
        json_schema_extra=TUNING,
    )
    byte_budget: int = Field(
        64 * _MIB,
        ge=8 * _MIB,
        description="Maximum size of all requests and responses that a worker holds in memory, in bytes.",
        json_schema_extra=TUNING,
    )
    tenants_share_requests: bool = Field(
        False,
        description="If true, lines of different tenants may be sent in one request. See "
        "`inputs_per_request` of a model.",
    )
    max_polled_models: int = Field(
        100,
        ge=1,
        description="Maximum number of models whose task queues a worker polls at once, shared fairly "
        "between tenants. Further models wait. Each polled model needs one thread, and one of "
        "the polls that Temporal allows at once (by default 1200 for each namespace and "
        "frontend).",
    )
    drain_seconds: float = Field(
        30.0,
        ge=0,
        description="Seconds that a stopping worker gives its slices to end, and a stopping API its "
        "requests. `0`: a worker stops its slices at once.",
        json_schema_extra=TUNING,
    )
    deployment_name: str = Field(
        "",
        pattern=r"^[^.]{0,63}$",
        description="Deployment name for Temporal's worker versioning. Unset: the worker is not versioned.",
    )
    build_id: str = Field(
        "", max_length=63, description="Id of this build, if `BATCHWRIGHT_DEPLOYMENT_NAME` is set."
    )
    models: dict[Annotated[str, Field(min_length=1)], ModelLimits] = Field(
        default={},
        description="Limits of single models, as a JSON object: `in_flight`, `capacity_fraction`, "
        "`requests_per_second`, `inputs_per_request`, `input_tokens_per_request`, "
        "`chat_executor`.",
        json_schema_extra=TUNING,
    )
    requests_per_second: float = Field(
        0.0,
        ge=0,
        le=MAX_RATE,
        description="Maximum number of requests per second of all workers together, over all models. `0`: "
        "no limit.",
        json_schema_extra=TUNING,
    )

    def in_flight_of(
        self, model: str, registered: int | None = None, registered_fraction: float | None = None
    ) -> int:
        """Return how many requests of a model one worker may have in flight at the same time, at least 1.

        The result is a limit multiplied by a fraction. The fraction is above 0 and at most 1.

        Args:
            registered: the limit in the model registry; None to use the limit in the settings.
            registered_fraction: the fraction in the model registry; None to use the fraction in the settings.
        """
        in_flight, fraction = self.model_in_flight, self.capacity_fraction
        if own := self.models.get(model):
            in_flight, fraction = own.in_flight or in_flight, own.capacity_fraction or fraction
        return max(1, int((registered or in_flight) * (registered_fraction or fraction)))

    @property
    def is_shared(self) -> bool:
        """True if a part of the backends' capacity is kept free for interactive requests."""
        of_models = [limits.capacity_fraction or 1.0 for limits in self.models.values()]
        return min(self.capacity_fraction, *of_models, 1.0) < 1

    @property
    def rates(self) -> dict[str, float]:
        """Configured rate limits in requests per second. The keys are the models that have a rate limit.

        The key `ALL_MODELS` has the rate limit of all models together, if there is one.
        """
        own = {name: limits.requests_per_second or 0.0 for name, limits in self.models.items()}
        return {name: rate for name, rate in [(ALL_MODELS, self.requests_per_second), *own.items()] if rate}

    @field_validator("requests_per_second")
    @classmethod
    def _leaves_something(cls, rate: float, info: ValidationInfo) -> float:
        if 0 < rate < MIN_RATE:
            raise ValueError(f"it must be 0, for no limit, or at least {MIN_RATE}")
        models: dict[str, ModelLimits] = info.data.get("models", {})
        own = {name: limits.requests_per_second or 0.0 for name, limits in models.items()}
        try:
            effective_rates({**own, ALL_MODELS: rate}, {}).check_remainder()
        except RatesConflict as conflict:
            raise ValueError(f"{conflict} (BATCHWRIGHT_MODELS)") from None
        return rate
