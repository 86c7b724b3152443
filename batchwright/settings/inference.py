"""Backends: where they are, how a request is sent to them, and when it is sent again."""

from pathlib import Path
from urllib.parse import urlsplit

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings

from batchwright.contracts.registry import check_header, check_host
from batchwright.rules.added_headers import stands_for
from batchwright.rules.passed_headers import read_names
from batchwright.settings.urls import backend_urls, http_url

_MIB = 1024 * 1024


class InferenceSettings(BaseSettings):
    backends: list[str] = Field(default=[], description="URLs of OpenAI-compatible backends, as a JSON list")
    registry: Path | None = Field(
        None,
        description="YAML file of models and their backends, in place of `BATCHWRIGHT_BACKENDS`; "
        "[its keys](registry.md)",
    )
    secrets_dir: Path = Field(
        Path("/etc/batchwright/secrets"), description="where the keys lie that the registry names"
    )
    backend_api_key: str = Field("", description="sent as Bearer to every backend")
    dispatch_header: str = Field(
        "X-Source", description="marks requests to backends that are `dispatched` in the registry"
    )
    dispatch_value: str = Field("dispatcher", description="its value")
    pass_headers: str = Field(
        "",
        description="headers of the request that creates a batch which go with each of its requests to "
        "backends, as `X-Team, X-Cost-Centre`; never credentials",
    )
    callback_url: str = Field(
        "",
        description="where backends reach the API, for models of kind `callback`, such as "
        "`https://batches.example.com`",
    )
    callback_secret: str = Field(
        "",
        pattern=r"^(.{32,})?$",
        description="signs the URLs that those backends call: 32 characters or more, equal for all processes",
    )
    default_model: str = Field("", description="serves lines without a model where the endpoint allows that")
    max_response_bytes: int = Field(16 * _MIB, ge=1024, description="size of one answer")
    request_timeout_seconds: float = Field(
        600.0, gt=0, description="time for one request, from sending to the whole answer"
    )
    connect_timeout_seconds: float = Field(10.0, gt=0, description="time to connect to a backend")
    max_attempts: int = Field(
        5, ge=1, description="times a line is asked when the answer may be its own fault (R8)"
    )
    initial_backoff_seconds: float = Field(1.0, gt=0, description="wait before the second attempt, doubling")
    max_backoff_seconds: float = Field(60.0, gt=0, description="longest wait between attempts")
    give_up_after_seconds: float = Field(0.0, ge=0, description="capacity waits per line; 0: the deadline")
    circuit_failures: int = Field(
        5, ge=1, description="capacity answers in a row that open a model's circuit"
    )
    pre_call_hooks: list[str] = Field(
        default=[],
        description="what may rewrite or refuse a line before it is sent: `module:attribute`, as a JSON list",
    )
    hook_timeout_seconds: float = Field(5.0, gt=0, le=60, description="time for one hook and line")
    http_engine: str = Field(
        "socket",
        pattern="^(socket|httpx)$",
        description="what sends requests: our own sockets, or httpx's (R20)",
    )
    model_refresh_seconds: float = Field(
        5.0, gt=0, description="how often the list of served models is read again"
    )

    @property
    def takes_callbacks(self) -> bool:
        """Whether backends can be told what to call."""
        return bool(self.callback_url and self.callback_secret)

    @property
    def passed_headers(self) -> tuple[str, ...]:
        """Names in lower case."""
        return read_names(self.pass_headers)

    @field_validator("pass_headers")
    @classmethod
    def _passable(cls, names: str) -> str:
        read_names(names)
        return names

    @field_validator("dispatch_header")
    @classmethod
    def _may_mark(cls, name: str) -> str:
        check_header(name)
        if said := stands_for(name):
            raise ValueError(f"the header {name!r} would stand for {said}: choose another")
        return name

    @field_validator("dispatch_value")
    @classmethod
    def _is_printable(cls, value: str) -> str:
        if not value.isprintable() or not value.isascii():
            raise ValueError("it must be printable ASCII")
        return value

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
    """Raises ValueError; the message has no more of the URL than its host."""
    try:
        host = urlsplit(url).hostname or ""
        check_host(host)
    except ValueError:
        raise ValueError(
            "it names a host that cannot be looked up: its parts have 1 to 63 characters"
        ) from None
