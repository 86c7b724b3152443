"""What a registry says: models, their backends, how each is treated. Durations: seconds, `90s`, `5m`.

The same shape whether it comes from the file or is changed at run time; no entry inherits from another.
"""

import ipaddress
import re
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from batchwright.contracts.entry import Entry, Positive, Seconds
from batchwright.contracts.jobs import JobConfig, Kind

_HTTP_URL = re.compile(r"https?://(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::(\d{1,5}))?(?:/[!-~]*)?")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
# Names of headers that carry credentials: they are neither configured as plain text nor passed through.
CREDENTIAL_HEADERS = frozenset(
    {"authorization", "proxy-authorization", "cookie", "set-cookie", "x-api-key", "api-key", "x-auth-token"}
)
# Those we make ourselves, and those of one connection.
OWN_HEADERS = frozenset(
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
    """Of what begins as a URL: whether requests can be sent there."""
    found = _HTTP_URL.fullmatch(url)
    if found is None or int(found[3] or 1) not in range(1, 65_536):
        raise ValueError("it must be ASCII, with a host and, if any, a port of 1 to 65535")
    try:
        if found[1]:
            ipaddress.IPv6Address(found[1])
        elif re.fullmatch(r"[0-9.]+", found[2]):
            ipaddress.IPv4Address(found[2])
        else:
            check_host(found[2])
    except ValueError:
        raise ValueError(f"{found[1] or found[2]!r} is no address: correct it, or name a host") from None


def check_host(name: str) -> None:
    """Raises ValueError for a name that nobody could look up: a part of it is empty, or too long."""
    name.encode("idna").decode("idna")


Name = Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[^\x00]+$")]
Choice = Literal["least-outstanding", "prefix-affine"]


class BackendConfig(Entry):
    """One URL. Without a value of its own, a timeout is the setting's."""

    url: str = Field(max_length=2048, description="where it is, with or without `/v1`")
    weight: float = Field(
        default=1.0, gt=0, le=1000, description="its share of the requests beside other backends"
    )
    model: str = Field(
        default="",
        max_length=256,
        pattern=r"^[^\x00]*$",
        description="the model's name there; unset: the same",
    )
    request_timeout: Positive | None = Field(
        default=None,
        description="one request, from sending to the whole answer; `BATCHWRIGHT_REQUEST_TIMEOUT_SECONDS`",
    )
    connect_timeout: Positive | None = Field(
        default=None, description="connecting; `BATCHWRIGHT_CONNECT_TIMEOUT_SECONDS`"
    )
    first_byte_timeout: Positive | None = Field(
        default=None, description="until an answer begins; unset: as long as the request may take"
    )
    idle_timeout: Positive | None = Field(
        default=None, description="between two pieces of an answer; unset: as long as the request may take"
    )
    api_key_name: str = Field(
        default="",
        pattern=r"^([\w.-]*[\w-][\w.-]*)?$",
        description="file below `BATCHWRIGHT_SECRETS_DIR` that holds the key; read again when it changes",
    )
    api_key_file: str = Field(default="", description="the same, anywhere; only in the file, not at run time")
    api_key_env: str = Field(
        default="", description="environment variable that holds the key; only in the file, not at run time"
    )
    headers: dict[str, str] = Field(
        default={}, description="added to every request; credentials are refused here"
    )
    dispatched: bool = Field(
        default=False,
        description="it tells dispatched traffic from direct: `BATCHWRIGHT_DISPATCH_HEADER` marks ours",
    )
    tls_insecure_skip_verify: bool = Field(default=False, description="take any certificate: for tests only")
    tls_ca_cert_file: str = Field(default="", description="PEM of the authority that signed its certificate")
    tls_client_cert_file: str = Field(default="", description="PEM of our certificate")
    tls_client_key_file: str = Field(default="", description="PEM of our certificate's key")

    @field_validator("url")
    @classmethod
    def _is_url(cls, url: str) -> str:
        if not re.match(r"https?://[^/\s?#]", url):
            raise ValueError("it must begin with http:// or https:// and name a host")
        if re.search(r"[\s?#]", url) or "@" in url.split("/", 3)[2]:
            raise ValueError("it must have no user, query, fragment or blank in it")
        _check_address(url)
        return url.rstrip("/").removesuffix("/v1")

    @field_validator("headers")
    @classmethod
    def _are_headers(cls, headers: dict[str, str]) -> dict[str, str]:
        for name, value in headers.items():
            check_header(name)
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


class RetryConfig(Entry):
    """How often a line is asked, and when again (R8). Without a value of its own, each is the setting's."""

    max_attempts: int | None = Field(
        default=None,
        ge=1,
        description="asks of a line whose answer may be its own fault; `BATCHWRIGHT_MAX_ATTEMPTS`",
    )
    initial_backoff: Positive | None = Field(
        default=None, description="first wait, doubling; `BATCHWRIGHT_INITIAL_BACKOFF_SECONDS`"
    )
    max_backoff: Positive | None = Field(
        default=None, description="longest wait; `BATCHWRIGHT_MAX_BACKOFF_SECONDS`"
    )
    give_up_after: Annotated[Seconds, Field(ge=0)] | None = Field(
        default=None,
        description="capacity waits per line, 0: the deadline; `BATCHWRIGHT_GIVE_UP_AFTER_SECONDS`",
    )


class LimitConfig(Entry):
    """How much at once."""

    in_flight: int | None = Field(
        default=None, ge=1, description="requests at once per worker; `BATCHWRIGHT_MODEL_IN_FLIGHT`"
    )


class ModelConfig(Entry):
    """One model, and everything that serves it."""

    backends: list[BackendConfig] = Field(min_length=1, max_length=64, description="who serves it")
    aliases: list[Name] = Field(default=[], description="other names that lines may ask it by")
    fallbacks: list[Name] = Field(
        default=[], description="models that answer, in this order, while all its backends are away"
    )
    choice: Choice = Field(
        default="least-outstanding",
        description="of two backends the less busy; or for lines of one prompt prefix the same backend",
    )
    hedge_after: Positive | None = Field(
        default=None,
        description="a line unanswered for so long is asked of another backend too, if one has room; "
        "the first answer counts; unset: never",
    )
    kind: Kind = Field(
        default="sync",
        description="how it is asked: one request, one answer; or by jobs, that are polled or call back",
    )
    jobs: JobConfig = Field(default_factory=JobConfig, description="of the kinds `poll` and `callback`")
    retries: RetryConfig = Field(default_factory=RetryConfig, description="when a line is asked again")
    limits: LimitConfig = Field(default_factory=LimitConfig, description="how much at once")

    @model_validator(mode="after")
    def _can_be_asked(self) -> Self:
        check_header(self.jobs.callback_header)
        if self.hedge_after and (self.kind != "sync" or len({backend.url for backend in self.backends}) < 2):
            raise ValueError("it must have kind: sync and two backends, or else no hedge_after")
        if self.kind == "sync" and self.jobs != JobConfig():
            raise ValueError("it must have kind: poll or kind: callback, or else no jobs")
        if self.kind == "poll" and not self.jobs.poll_endpoint_template:
            raise ValueError("it must have jobs.poll_endpoint_template, such as /status/{id}, for kind: poll")
        return self


class GatewayConfig(BackendConfig):
    """One backend for all models: it tells itself which."""

    retries: RetryConfig = Field(default_factory=RetryConfig, description="when a line is asked again")
    limits: LimitConfig = Field(default_factory=LimitConfig, description="how much at once, of each model")

    @field_validator("model")
    @classmethod
    def _has_no_model(cls, model: str) -> str:
        raise ValueError("a gateway has no model of its own: it is asked by each line's")


class RegistryConfig(Entry):
    """Either one gateway for all models, or each model with its own (S0-32)."""

    gateway: GatewayConfig | None = Field(default=None, description="serves all models; not beside `models`")
    models: dict[Name, ModelConfig] = Field(default={}, description="by the name that lines ask for")

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.gateway is not None and self.models:
            raise ValueError("it must have gateway or models, not both: move the gateway into each model")
        if self.gateway is None and not self.models:
            raise ValueError("it must have gateway, one for all models, or models, each with its backends")
        check_names(self.models)
        return self


class NamesClash(ValueError):
    """Names of models do not fit together; the message says which, and what to do."""


def check_names(models: dict[str, ModelConfig], elsewhere: frozenset[str] = frozenset()) -> None:
    """Raises NamesClash. `elsewhere` are models that are served without being in the registry."""
    owners: dict[str, str] = {}
    for name, model in models.items():
        for alias in model.aliases:
            if alias in models:
                raise NamesClash(f"the alias {alias!r} of {name!r} is a model itself: take one of them away")
            if owners.setdefault(alias, name) != name or model.aliases.count(alias) > 1:
                raise NamesClash(
                    f"the alias {alias!r} of {name!r} is taken by {owners[alias]!r}: choose another"
                )
        for fallback in model.fallbacks:
            if fallback == name:
                raise NamesClash(f"{name!r} falls back on itself: take it out of its fallbacks")
            if fallback not in models and fallback not in elsewhere:
                raise NamesClash(f"the fallback {fallback!r} of {name!r} is no model here: register it first")


def check_header(name: str) -> None:
    """Raises ValueError for a name that is none, or one that must not be set from outside."""
    if not _HEADER_NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name of a header")
    if name.lower() in CREDENTIAL_HEADERS:
        raise ValueError(f"the header {name!r} holds a credential: use api_key_name")
    if name.lower() in OWN_HEADERS:
        raise ValueError(f"the header {name!r} is made by Batchwright itself: take it away, or another name")
