"""Schema of the registry: models, their backends, retries and limits.

The registry file and changes at run time have the same schema. No model inherits settings from another model.
"""

import ipaddress
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Annotated, Literal, Self, TypeVar

from pydantic import Field, field_validator, model_validator

from batchwright.contracts.registry.base_types import Duration, PositiveDuration, RegistryEntry
from batchwright.contracts.registry.job_config import JobConfig, ModelKind
from batchwright.contracts.registry.prices import PriceConfig, describe_mixed_currencies

MAX_PER_MINUTE = 2**53 - 1  # the largest integer that every JSON parser reads exactly

_Item = TypeVar("_Item", bound=Hashable)
_HTTP_URL = re.compile(r"https?://(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::(\d{1,5}))?(?:/[!-~]*)?")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
# Headers that carry credentials: they are neither configured as plain text nor passed on.
CREDENTIAL_HEADERS = frozenset(
    {"authorization", "proxy-authorization", "cookie", "set-cookie", "x-api-key", "api-key", "x-auth-token"}
)
# Headers that Batchwright sets itself, and hop-by-hop headers.
RESERVED_HEADERS = frozenset(
    {
        "accept",
        "accept-encoding",
        "connection",
        "content-length",
        "content-type",
        "expect",
        "host",
        "idempotency-key",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "x-request-id",
    }
)


def _check_address(url: str) -> None:
    """Raise ValueError if the host, the port or the path of the HTTP URL `url` is invalid."""
    found = _HTTP_URL.fullmatch(url)
    if found is None or int(found[3] or 1) not in range(1, 65_536):
        raise ValueError("it must be ASCII with a host and an optional port from 1 to 65535")
    try:
        if found[1]:
            ipaddress.IPv6Address(found[1])
        elif re.fullmatch(r"[0-9.]+", found[2]):
            ipaddress.IPv4Address(found[2])
        else:
            check_host_name(found[2])
    except ValueError:
        raise ValueError(
            f"{found[1] or found[2]!r} is not an IP address: correct it, or use a host name"
        ) from None


def check_host_name(name: str) -> None:
    """Raise ValueError if a part of a host name (between its dots) is empty or too long for DNS."""
    name.encode("idna").decode("idna")


ModelName = Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[^\x00]+$")]
LoadBalancing = Literal["least-outstanding", "prefix-affine"]
SettingSource = Literal["change", "file", "listing", "environment", "default"]
ModelSource = Literal["file", "change", "listing"]


class BackendConfig(RegistryEntry):
    """One backend of a model: its URL, and how requests are sent to it.

    A timeout that is not set has the value of the corresponding setting.
    """

    url: str = Field(max_length=2048, description="URL of the backend, with or without `/v1`")
    weight: float = Field(
        default=1.0, gt=0, le=1000, description="relative share of the requests among the model's backends"
    )
    model: str = Field(
        default="",
        max_length=256,
        pattern=r"^[^\x00]*$",
        description="the model's name at this backend; unset: the same",
    )
    request_timeout: PositiveDuration | None = Field(
        default=None,
        description="time limit of one request, from sending to the complete response; unset: "
        "`BATCHWRIGHT_REQUEST_TIMEOUT_SECONDS`",
    )
    connect_timeout: PositiveDuration | None = Field(
        default=None, description="time limit to connect; unset: `BATCHWRIGHT_CONNECT_TIMEOUT_SECONDS`"
    )
    first_byte_timeout: PositiveDuration | None = Field(
        default=None, description="time limit until the response starts; unset: none of its own"
    )
    idle_timeout: PositiveDuration | None = Field(
        default=None, description="time limit between two pieces of a response; unset: none of its own"
    )
    api_key_name: str = Field(
        default="",
        pattern=r"^([\w.-]*[\w-][\w.-]*)?$",
        description="file in `BATCHWRIGHT_SECRETS_DIR` with the API key; reloaded when it changes",
    )
    api_key_file: str = Field(
        default="", description="path of a file with the API key; only in the registry file, not at run time"
    )
    api_key_env: str = Field(
        default="",
        description="environment variable with the API key; only in the registry file, not at run time",
    )
    api_key_header: Literal["authorization", "x-api-key", "api-key"] = Field(
        default="authorization",
        description="header with the API key: `authorization` as a Bearer token, `x-api-key` as Anthropic's "
        "clients send it, `api-key` as clients of Azure do",
    )
    headers: dict[str, str] = Field(
        default={}, description="headers added to every request; credentials are rejected here"
    )
    in_flight: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="requests in flight to this URL from all workers together, which divide it; unset: only "
        "the limits of each worker",
    )
    priority: int | None = Field(
        default=None,
        ge=-(2**31),
        lt=2**31,
        description="top-level field `priority` of every request's body, for servers that schedule by it; "
        "it replaces the line's own; unset: bodies stay as they are",
    )
    send_dispatch_header: bool = Field(
        default=False,
        description="add the header `BATCHWRIGHT_DISPATCH_HEADER` to every request, so that the backend can "
        "tell them from direct ones",
    )
    tls_insecure_skip_verify: bool = Field(
        default=False, description="accept any certificate: for tests only"
    )
    tls_ca_cert_file: str = Field(
        default="", description="PEM file of the authority that signed the backend's certificate"
    )
    tls_client_cert_file: str = Field(default="", description="PEM file of the client certificate")
    tls_client_key_file: str = Field(default="", description="PEM file of the client certificate's key")

    @field_validator("url")
    @classmethod
    def _is_url(cls, url: str) -> str:
        if not re.match(r"https?://[^/\s?#]", url):
            raise ValueError("it must begin with http:// or https:// and name a host")
        if re.search(r"[\s?#]", url) or "@" in url.split("/", 3)[2]:
            raise ValueError("it must not contain a user, a query, a fragment or spaces")
        _check_address(url)
        return url.rstrip("/").removesuffix("/v1")

    @field_validator("headers")
    @classmethod
    def _are_headers(cls, headers: dict[str, str]) -> dict[str, str]:
        for name, value in headers.items():
            check_header_name(name)
            if not value.isprintable() or not value.isascii():
                raise ValueError(f"the value of {name!r} must be printable ASCII")
        return headers

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if sum(map(bool, (self.api_key_name, self.api_key_file, self.api_key_env))) > 1:
            raise ValueError("it must have only one of api_key_name, api_key_file and api_key_env")
        if bool(self.tls_client_cert_file) != bool(self.tls_client_key_file):
            raise ValueError("it must have both tls_client_cert_file and tls_client_key_file, or none")
        return self


class RetryConfig(RegistryEntry):
    """Retries of a model's lines. A field that is not set has the value of the corresponding setting."""

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
    """Limits of a model: requests in flight, lines per shared request, and rates per minute."""

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
    """A gateway: one backend that serves all models, whatever their names."""

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
    """The registry: either one gateway for all models, or models with their own backends."""

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
    """Return the prices of the models that have prices, by name of the model."""
    return {name: model.prices for name, model in models.items() if model.prices is not None}


def describe_duplicate_backend(backends: Sequence[BackendConfig], model: str = "") -> str:
    """Return a message about the first backend that occurs twice in `backends`, or "" if all are different.

    Two backends are the same if they have the same URL, model name and credentials.

    Args:
        model: the model name of every backend that sets no model name; "" if it is not known.
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
    """The name, an alias or a fallback of a model conflicts with another model.

    The message names the conflict and how to resolve it.
    """


def check_model_names(models: dict[str, ModelConfig], elsewhere: frozenset[str] = frozenset()) -> None:
    """Check that every alias belongs to one model only, and that every fallback is another known model.

    Raises ModelNameConflict if a check fails.

    Args:
        models: the models to check, by name.
        elsewhere: names of other served models. A model may have them as fallbacks, too.
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


def check_header_name(name: str) -> None:
    """Raise ValueError if operators are not allowed to configure a header with this name.

    A name is not allowed if it is invalid, if the header is for credentials, or if Batchwright sets the
    header itself.
    """
    if not _HEADER_NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not a header name")
    if name.lower() in CREDENTIAL_HEADERS:
        raise ValueError(f"the header {name!r} holds a credential: use api_key_name")
    if name.lower() in RESERVED_HEADERS:
        raise ValueError(f"the header {name!r} is set by Batchwright itself: remove it, or use another name")
