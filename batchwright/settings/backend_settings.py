"""Settings of backends: their URLs, how requests are sent to them, and when requests are retried."""

from pathlib import Path
from urllib.parse import urlsplit

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings

from batchwright.contracts.model_registry.backend_config import check_header_name, check_host_name
from batchwright.rules.backends.request_headers import parse_passed_names, reserved_for
from batchwright.settings.setting_levels import START, TUNING
from batchwright.settings.value_formats import backend_urls, http_url

_MIB = 1024 * 1024


class BackendSettings(BaseSettings):
    backends: list[str] = Field(
        default=[], description="URLs of OpenAI-compatible backends, as a JSON list.", json_schema_extra=START
    )
    any_model: bool = Field(
        False,
        description="If true, lines with any model name are sent to the backends of "
        "`BATCHWRIGHT_BACKENDS`, also with names that they do not list: for gateways without "
        "a model list, LoRA names and wildcards.",
        json_schema_extra=TUNING,
    )
    registry: Path | None = Field(
        None,
        description="YAML file with models and their backends, to be used instead of "
        "`BATCHWRIGHT_BACKENDS`. See [its keys](registry.md).",
        json_schema_extra=START,
    )
    secrets_dir: Path = Field(
        Path("/etc/batchwright/secrets"), description="Directory with the API keys that the registry names."
    )
    backend_api_key: str = Field(
        "",
        description="API key sent as a Bearer token to every backend of `BATCHWRIGHT_BACKENDS`.",
        json_schema_extra=START,
    )
    dispatch_header: str = Field(
        "X-Source",
        description="Header that is added, with the value `dispatcher`, to requests for backends that "
        "have `send_dispatch_header` in the registry.",
    )
    pass_headers: str = Field(
        "",
        description="Headers of the request that creates a batch that are sent on with each of its "
        "requests to backends, such as `X-Team, X-Cost-Centre`. Headers with credentials are "
        "never sent on.",
    )
    callback_url: str = Field(
        "",
        description="URL under which backends can reach the API, such as `https://batches.example.com`. "
        "Required for models of kind `callback`.",
    )
    callback_secret: str = Field(
        "",
        pattern=r"^(.{32,})?$",
        description="Secret that signs callback URLs: at least 32 characters, and the same in all processes.",
    )
    default_model: str = Field(
        "",
        description="Model for lines that name none, if the endpoint allows that. Unset: such lines fail "
        "with `model_not_found`.",
    )
    max_response_bytes: int = Field(
        16 * _MIB, ge=1024, description="Maximum size of a backend's response, in bytes."
    )
    request_timeout_seconds: float = Field(
        600.0,
        gt=0,
        description="Time limit of one request in seconds, from sending it to its complete response.",
        json_schema_extra=TUNING,
    )
    connect_timeout_seconds: float = Field(
        10.0, gt=0, description="Time limit to connect to a backend, in seconds."
    )
    max_attempts: int = Field(
        5,
        ge=1,
        description="Maximum number of attempts of a line, counting only failures that may be caused by "
        "the line itself. Failures for lack of capacity do not count.",
        json_schema_extra=TUNING,
    )
    initial_backoff_seconds: float = Field(
        1.0,
        gt=0,
        description="Seconds to wait before the second attempt. The wait doubles before each further "
        "attempt.",
    )
    max_backoff_seconds: float = Field(
        60.0, gt=0, description="Longest wait between two attempts, in seconds."
    )
    give_up_after_seconds: float = Field(
        0.0,
        ge=0,
        description="Seconds that a line waits for capacity in total before it fails. `0`: until the "
        "batch's deadline.",
        json_schema_extra=TUNING,
    )
    circuit_failures: int = Field(
        5,
        ge=1,
        description="Capacity failures in a row after which a model's circuit breaker opens at a backend.",
    )
    pre_call_hooks: list[str] = Field(
        default=[],
        description="Hooks that may change or reject a line or an interactive call before it is sent, as a "
        "JSON list of `module:attribute`.",
        json_schema_extra=TUNING,
    )
    hook_timeout_seconds: float = Field(
        5.0, gt=0, le=60, description="Time limit of one hook call, in seconds.", json_schema_extra=TUNING
    )
    http_engine: str = Field(
        "socket",
        pattern="^(socket|httpx)$",
        description="HTTP client for backends: `socket` for the built-in connection pool, or `httpx`.",
    )
    max_listed_models: int = Field(
        1000,
        ge=1,
        le=10_000,
        description="Maximum number of models taken from one backend's model list. Further models are "
        "logged and ignored.",
    )

    @property
    def takes_callbacks(self) -> bool:
        """True if backends can send results in callbacks, because the callback URL and its secret are set."""
        return bool(self.callback_url and self.callback_secret)

    @property
    def passed_headers(self) -> tuple[str, ...]:
        """Names of the client's headers that are forwarded to backends, in lower case.

        These headers are read from the request that creates a batch. They are sent with every request of the
        batch.
        """
        return parse_passed_names(self.pass_headers)

    @field_validator("pass_headers")
    @classmethod
    def _passable(cls, names: str) -> str:
        parse_passed_names(names)
        return names

    @field_validator("dispatch_header")
    @classmethod
    def _may_mark(cls, name: str) -> str:
        check_header_name(name)
        if conflict := reserved_for(name):
            raise ValueError(f"the header {name!r} would replace {conflict}: choose another")
        return name

    @field_validator("callback_url")
    @classmethod
    def _callback_url(cls, url: str) -> str:
        return http_url(url) if url else url

    @field_validator("backends")
    @classmethod
    def _urls(cls, urls: list[str]) -> list[str]:
        for url in urls:
            _check_host(url)
        return backend_urls(urls)


def _check_host(url: str) -> None:
    """Raise ValueError if the host of a backend's URL is invalid.

    The error message contains no part of the URL, because the URL may have a password.
    """
    try:
        host = urlsplit(url).hostname or ""
        check_host_name(host)
    except ValueError:
        raise ValueError(
            "it names a host that cannot be looked up: its parts have 1 to 63 characters"
        ) from None
