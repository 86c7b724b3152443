"""Schema of the model registry: models, their backends, retries and limits.

The registry file and operators' changes at run time have the same schema. No model inherits settings from
another model.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Annotated, Literal, Self, TypeVar

from pydantic import Field, field_validator, model_validator

from batchwright.contracts.model_registry.backend_config import BackendConfig, check_header_name
from batchwright.contracts.model_registry.backend_job_config import JobConfig, ModelKind
from batchwright.contracts.model_registry.config_base import Duration, PositiveDuration, RegistryEntry
from batchwright.contracts.model_registry.price_config import PriceConfig, describe_mixed_currencies

MAX_PER_MINUTE = 2**53 - 1  # the largest integer that every JSON parser reads exactly

_Item = TypeVar("_Item", bound=Hashable)
ModelName = Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[^\x00]+$")]
LoadBalancing = Literal["least-outstanding", "prefix-affine"]
SettingSource = Literal["change", "file", "listing", "environment", "default"]
ModelSource = Literal["file", "change", "listing"]


class RetryConfig(RegistryEntry):
    """The retry settings of a model's lines.

    If a field is not set, the environment variable that the field's description names applies.
    """

    max_attempts: int | None = Field(
        default=None,
        ge=1,
        description="attempts of a line whose failure may be its own fault; unset: "
        "`BATCHWRIGHT_MAX_ATTEMPTS`",
    )
    initial_backoff: PositiveDuration | None = Field(
        default=None,
        description="first wait, which then doubles; unset: `BATCHWRIGHT_INITIAL_BACKOFF_SECONDS`",
    )
    max_backoff: PositiveDuration | None = Field(
        default=None, description="longest wait; unset: `BATCHWRIGHT_MAX_BACKOFF_SECONDS`"
    )
    give_up_after: Annotated[Duration, Field(ge=0)] | None = Field(
        default=None,
        description="how long a line waits for capacity; `0`: until the deadline; unset: "
        "`BATCHWRIGHT_GIVE_UP_AFTER_SECONDS`",
    )


class LimitConfig(RegistryEntry):
    """Limits of a model: requests in flight, size of one request, and lines and tokens sent per minute."""

    in_flight: int | None = Field(
        default=None, ge=1, description="requests in flight per worker; unset: `BATCHWRIGHT_MODEL_IN_FLIGHT`"
    )
    capacity_fraction: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="share of `in_flight` that batches may use; unset: `BATCHWRIGHT_CAPACITY_FRACTION`",
    )
    inputs_per_request: int | None = Field(
        default=None,
        ge=1,
        le=2048,
        description="lines that may share a request: of `/v1/embeddings`, and chats if the model has a "
        "`chat_executor`; unset: as in `BATCHWRIGHT_MODELS`, else 1",
    )
    input_tokens_per_request: int | None = Field(
        default=None,
        ge=1,
        description="estimated input tokens of such a request; unset: as in `BATCHWRIGHT_MODELS`, else 32000",
    )
    requests_per_minute: int | None = Field(
        default=None,
        ge=1,
        le=MAX_PER_MINUTE,
        description="lines sent per minute by all workers together, which divide it; unset: no limit",
    )
    tokens_per_minute: int | None = Field(
        default=None,
        ge=1,
        le=MAX_PER_MINUTE,
        description="tokens of these lines per minute, prompt and response; unset: no limit",
    )


class ModelConfig(RegistryEntry):
    """One model and the backends that serve it."""

    backends: list[BackendConfig] = Field(min_length=1, max_length=64, description="backends that serve it")
    aliases: list[ModelName] = Field(default=[], description="other names that lines may use for it")
    fallbacks: list[ModelName] = Field(
        default=[], description="models that answer, in this order, while all its backends are unavailable"
    )
    load_balancing: LoadBalancing = Field(
        default="least-outstanding",
        description="`least-outstanding`: the less busy of two backends; `prefix-affine`: the same "
        "backend for lines "
        "with the same prompt prefix",
    )
    kind: ModelKind = Field(
        default="sync",
        description="`sync`: one request, one response; `poll` and `callback`: requests run as jobs",
    )
    jobs: JobConfig = Field(
        default_factory=JobConfig, description="job settings of the kinds `poll` and `callback`"
    )
    retries: RetryConfig = Field(default_factory=RetryConfig, description="retries of its lines")
    limits: LimitConfig = Field(default_factory=LimitConfig, description="concurrency limits and rates")
    prices: PriceConfig | None = Field(default=None, description="prices of its tokens and requests")

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        if problem := describe_duplicate_backend(self.backends):
            raise ValueError(problem)
        if repeated := _first_duplicate(self.fallbacks):
            raise ValueError(f"it has the fallback {repeated!r} twice: remove one of them")
        check_header_name(self.jobs.callback_header)
        if self.kind == "sync" and self.jobs != JobConfig():
            raise ValueError("it must have kind: poll or kind: callback, or else no jobs")
        if self.kind == "poll" and not self.jobs.poll_endpoint_template:
            raise ValueError("it must have jobs.poll_endpoint_template, such as /status/{id}, for kind: poll")
        return self


class GatewayConfig(BackendConfig):
    """A gateway: one backend to which the lines of all models are sent.

    Each request names its model.
    """

    any_model: bool = Field(
        default=True,
        description="it takes any model name; `false`: only the models that its `/v1/models` lists",
    )
    retries: RetryConfig = Field(default_factory=RetryConfig, description="retries of its lines")
    limits: LimitConfig = Field(default_factory=LimitConfig, description="concurrency limits of each model")
    prices: PriceConfig | None = Field(
        default=None, description="prices of each model, unless a change at run time sets others"
    )

    @field_validator("model")
    @classmethod
    def _has_no_model(cls, model: str) -> str:
        raise ValueError("a gateway has no `model`: it receives the model name of each line")


class RegistryConfig(RegistryEntry):
    """The model registry: either models with their own backends, or one gateway.

    A gateway is a backend that serves all models.
    """

    gateway: GatewayConfig | None = Field(
        default=None, description="one backend that serves all models; not together with `models`"
    )
    models: dict[ModelName, ModelConfig] = Field(default={}, description="models by the name that lines use")

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.gateway is not None and self.models:
            raise ValueError("it must have gateway or models, not both: move the gateway into each model")
        if self.gateway is None and not self.models:
            raise ValueError("it must have gateway, one for all models, or models, each with its backends")
        check_model_names(self.models)
        for name, model in self.models.items():
            if problem := describe_duplicate_backend(model.backends, name):
                raise ValueError(f"models.{name}: {problem}")
        if problem := describe_mixed_currencies(prices_of(self.models)):
            raise ValueError(problem)
        return self


def prices_of(models: Mapping[str, ModelConfig]) -> dict[str, PriceConfig]:
    """Return the prices of models, by the model's name. Models without prices are left out."""
    return {name: model.prices for name, model in models.items() if model.prices is not None}


def describe_duplicate_backend(backends: Sequence[BackendConfig], model: str = "") -> str:
    """Return a message about the first backend that occurs twice in `backends`, or "" if all are different.

    Backends are the same if their URL, model name and credentials are equal.

    Args:
        backends: the backends of one model.
        model: name of the model; "" if the name is not known. A backend without a model name of its own is
            compared with this name.
    """
    found = _first_duplicate(
        (
            backend.url,
            backend.model or model,
            backend.api_key_name,
            backend.api_key_file,
            backend.api_key_env,
            backend.tls_client_cert_file,
        )
        for backend in backends
    )
    return f"it has the backend {found[0]} twice: remove one, or add up their weights" if found else ""


def _first_duplicate(items: Iterable[_Item]) -> _Item | None:
    seen: set[_Item] = set()
    for item in items:
        if item in seen:
            return item
        seen.add(item)
    return None


class ModelNameConflict(ValueError):
    """Raised if a name, an alias or a fallback of a model conflicts with another model.

    The message names the conflict and says how to resolve it.
    """


def check_model_names(models: dict[str, ModelConfig], elsewhere: frozenset[str] = frozenset()) -> None:
    """Check that every alias belongs to only one model, and that every fallback names another known model.

    Raises ModelNameConflict if a check fails.

    Args:
        models: the models to check, by name.
        elsewhere: names of other existing models. Fallbacks may use these names, too. The other models
            themselves are not checked.
    """
    owners: dict[str, str] = {}
    for name, model in models.items():
        for alias in model.aliases:
            if alias in models:
                raise ModelNameConflict(
                    f"the alias {alias!r} of {name!r} is a model itself: remove one of them"
                )
            if owners.setdefault(alias, name) != name or model.aliases.count(alias) > 1:
                raise ModelNameConflict(
                    f"the alias {alias!r} of {name!r} is taken by {owners[alias]!r}: choose another"
                )
        for fallback in model.fallbacks:
            if fallback == name:
                raise ModelNameConflict(f"{name!r} is its own fallback: remove it from its fallbacks")
            if fallback not in models and fallback not in elsewhere:
                raise ModelNameConflict(
                    f"the fallback {fallback!r} of {name!r} is not a model: register it first"
                )
