"""A worker: how much it does at once, and how fast models may be asked."""

from typing import Annotated

from pydantic import BaseModel, Field, ValidationInfo, field_validator
from pydantic_settings import BaseSettings

from batchwright.rules.rates import ALL_MODELS, LEAST, MOST, RatesConflict, effective

_MIB = 1024 * 1024


class ModelLimits(BaseModel):
    """One model's own limits, where they differ from the defaults below. The rate is the whole fleet's.

    `inputs_per_request`: lines of `/v1/embeddings` that may share a request (S1-201); unset: one each.
    `chat_executor`: a `module:attribute` that joins chats, so that they may share requests too (S1-213).
    """

    in_flight: int | None = Field(None, ge=1)
    capacity_fraction: float | None = Field(None, gt=0, le=1)
    requests_per_second: float | None = Field(None, ge=LEAST, le=MOST)
    inputs_per_request: int = Field(1, ge=1, le=2048)
    input_tokens_per_request: int = Field(32_000, ge=1)  # estimated (S1-217)
    chat_executor: str = ""


class WorkerSettings(BaseSettings):
    slots_per_model: int = Field(4, ge=1, description="slices at once per model and worker")
    io_slots: int = Field(2, ge=1, description="ingestions and finalizations at once per worker")
    dispatch_slots: int = Field(
        16, ge=1, description="slices at once per worker of the models that share the rate over all models"
    )
    global_in_flight: int = Field(100, ge=1, description="requests at once per worker (S0-25)")
    model_in_flight: int = Field(10, ge=1, description="requests at once per worker and model (S0-25)")
    adaptive_limits: bool = Field(
        True,
        description="find from a backend's answers how many requests at once help it, up to these limits",
    )
    least_in_flight: int = Field(1, ge=1, description="requests at once that a backend gets at least")
    capacity_fraction: float = Field(
        1.0,
        gt=0,
        le=1,
        description="share of a model's requests at once that batches may use; the rest is left to "
        "interactive traffic (S1-19, S1-63)",
    )
    byte_budget: int = Field(64 * _MIB, ge=8 * _MIB, description="bytes of bodies and answers held at once")
    drain_seconds: float = Field(30.0, ge=0, description="time a stopping worker gives its slices")
    startup_seconds: float = Field(
        30.0, ge=0, description="time a starting worker waits for Temporal, PostgreSQL and the storage"
    )
    deployment_name: str = Field(
        "", pattern=r"^[^.]{0,63}$", description="of Temporal's worker versioning; empty: unversioned"
    )
    build_id: str = Field("", max_length=63, description="of this build, where `deployment_name` is set")
    models: dict[Annotated[str, Field(min_length=1)], ModelLimits] = Field(
        default={},
        description="limits of single models, as JSON: `in_flight`, `capacity_fraction`, "
        "`requests_per_second`, `inputs_per_request`, `input_tokens_per_request`, `chat_executor`",
    )
    requests_per_second: float = Field(
        0.0, ge=0, le=MOST, description="of the whole fleet, over all models; 0: no limit"
    )

    def in_flight_of(self, model: str, registered: int | None = None) -> int:
        """Requests at once of a model per worker: its share of what it takes, at least one.

        What is `registered` goes before the settings.
        """
        in_flight, fraction = self.model_in_flight, self.capacity_fraction
        if own := self.models.get(model):
            in_flight, fraction = own.in_flight or in_flight, own.capacity_fraction or fraction
        return max(1, int((registered or in_flight) * fraction))

    @property
    def is_shared(self) -> bool:
        """Whether backends serve interactive traffic too."""
        return any(limits.capacity_fraction for limits in self.models.values()) or self.capacity_fraction < 1

    @property
    def rates(self) -> dict[str, float]:
        """Requests/s by model, `ALL_MODELS` for all of them; where there are none, no entry."""
        own = {name: limits.requests_per_second or 0.0 for name, limits in self.models.items()}
        return {name: rate for name, rate in [(ALL_MODELS, self.requests_per_second), *own.items()] if rate}

    @field_validator("requests_per_second")
    @classmethod
    def _leaves_something(cls, rate: float, info: ValidationInfo) -> float:
        if 0 < rate < LEAST:
            raise ValueError(f"it may be 0, for no limit, or {LEAST} and more")
        models: dict[str, ModelLimits] = info.data.get("models", {})
        own = {name: limits.requests_per_second or 0.0 for name, limits in models.items()}
        try:
            effective({**own, ALL_MODELS: rate}, {}).check()
        except RatesConflict as conflict:
            raise ValueError(f"{conflict} (BATCHWRIGHT_MODELS)") from None
        return rate
