"""Every knob: unit, default, environment name. Nothing else reads the environment.

A setting `x_y` comes from `BATCHWRIGHT_X_Y`, those of `batchwright/otel.py` from the names OpenTelemetry gave
them. Wrong ones are named by `load()`, before anything listens.
"""

import os
import re
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field, SecretStr, ValidationError, ValidationInfo, field_validator
from pydantic_settings import SettingsConfigDict
from pydantic_settings.exceptions import SettingsError as UnreadableSetting

from batchwright.contracts.openai import Profile
from batchwright.otel import OtelSettings, variable
from batchwright.rules import transport
from batchwright.rules.keyring import key_references
from batchwright.rules.locations import location
from batchwright.rules.rates import ALL_MODELS, LEAST, MOST, RatesConflict, effective
from batchwright.setting_errors import not_json, what_is_wrong

MIB = 1024 * 1024


# Never shown, whole or in messages.
SECRETS = frozenset(
    {
        "api_key",
        "backend_api_key",
        "database_url",
        "otel_exporter_otlp_headers",
        "otel_exporter_otlp_traces_headers",
        "payload_keys",
        "temporal_api_key",
    }
)


class SettingsError(Exception):
    """A setting is wrong; the message names it and says what it may be."""


class ModelLimits(BaseModel):
    """One model's own limits, where they differ from the defaults below. The rate is the whole fleet's."""

    in_flight: int | None = Field(None, ge=1)
    requests_per_second: float | None = Field(None, ge=LEAST, le=MOST)


class Settings(OtelSettings):
    model_config = SettingsConfigDict(
        env_prefix="BATCHWRIGHT_", extra="ignore", frozen=True, populate_by_name=True
    )

    # Where the parts are
    database_url: str = Field(
        "postgresql://batchwright@127.0.0.1:5432/batchwright",
        description="PostgreSQL that holds files, batches and progress",
    )
    database_pool_size: int = Field(10, ge=2, le=200, description="connections per process")
    temporal_address: str = Field("127.0.0.1:7233", description="host:port of the Temporal frontend")
    temporal_namespace: str = Field("default", description="namespace of the workflows")
    temporal_ui_url: str = Field("", description="shown by the CLI; no part connects to it")
    temporal_api_key: SecretStr | None = Field(
        None, description="sent to Temporal as Bearer; only over TLS, or to loopback"
    )
    temporal_api_key_file: Path | None = Field(
        None, description="file of that key; read again when it changes"
    )
    temporal_tls_ca_file: Path | None = Field(
        None, description="PEM file of the authorities that sign Temporal's certificate; unset: the system's"
    )
    temporal_tls_cert_file: Path | None = Field(
        None, description="PEM file of our client certificate; read again when it changes"
    )
    temporal_tls_key_file: Path | None = Field(None, description="PEM file of its private key")
    temporal_tls_server_name: str = Field(
        "", description="the name in Temporal's certificate, where it is not the address's"
    )
    temporal_tls: bool | None = Field(
        None, description="TLS to Temporal; unset: where one of the settings above needs it"
    )
    temporal_retention_days: int | None = Field(
        None,
        ge=1,
        le=3650,
        description="how long `setup temporal` has ended workflows kept; unset: 14 in a namespace it makes",
    )
    payload_keys: list[str] = Field(
        default=[],
        description="keys of the payloads in Temporal, a JSON list of `id=file:PATH` or `id=env:NAME`: "
        "the first encrypts, all decrypt",
    )
    codec_host: str = Field("127.0.0.1", description="address of `batchwright codec-server`")
    codec_trusted_network: bool = Field(
        False, description="only those who may read every payload can reach the codec server"
    )
    codec_port: int = Field(8081, ge=0, le=65535, description="its port; 0: a free one")
    codec_origins: list[str] = Field(
        default=[], description="of the Web UIs that may ask it, as a JSON list; unset: `temporal_ui_url`'s"
    )
    storage: str = Field(
        "", description="s3://bucket/prefix, or file:///directory; unset: the directory `storage_dir`"
    )
    storage_dir: Path = Field(Path(".batchwright/objects"), description="directory of the local storage")
    storage_patience_seconds: float = Field(
        20.0, ge=0, le=600, description="how long an operation on S3 is tried again before it fails (S0-67)"
    )
    s3_endpoint_url: str = Field("", description="of an S3 that is not Amazon's, such as http://host:9000")
    s3_region: str = Field("", description="of the bucket; unset: as AWS_REGION or the profile says")
    s3_path_style: bool = Field(
        False, description="address the bucket in the path, not in the host name: most other S3s want it"
    )
    s3_sse: str = Field(
        "",
        pattern="^(|AES256|aws:kms|aws:kms:dsse)$",
        description="server-side encryption asked for: AES256, aws:kms or aws:kms:dsse; unset: the bucket's",
    )
    s3_sse_kms_key_id: str = Field("", description="key for s3_sse=aws:kms; unset: the account's own")
    spool_dir: Path | None = Field(None, description="scratch files; unset: the system's temporary directory")
    backends: list[str] = Field(default=[], description="URLs of OpenAI-compatible backends, as a JSON list")
    backend_api_key: str = Field("", description="sent as Bearer to every backend")
    default_model: str = Field("", description="serves lines without a model where the endpoint allows that")

    # API
    api_host: str = Field(
        "127.0.0.1",
        description="address the API listens on; beyond loopback only with `api_trusted_network`",
    )
    api_port: int = Field(8000, ge=0, le=65535, description="0: a free port")
    api_trusted_network: bool = Field(
        False,
        description="only callers who may act for every tenant reach the API: a gateway, a network policy",
    )
    api_cors_origins: list[str] = Field(
        default=[], description="origins whose web pages may call the API, as a JSON list; unset: none"
    )
    api_header_seconds: float = Field(15.0, gt=0, description="time for a request's headers to come")
    api_silence_seconds: float = Field(
        60.0, gt=0, description="longest silence in a request's body, and of a client that reads no answer"
    )
    default_tenant: str = Field("default", description="tenant of a request without X-Tenant")
    tenant_weights: dict[str, float] = Field(default={}, description="share of a tenant; 1.0 where unset")

    # Command line
    url: str = Field("http://127.0.0.1:8000", description="address of the API that the CLI talks to")
    api_key: str = Field("", description="sent as Bearer to the API by the CLI")
    tenant: str = Field("", description="sent as X-Tenant by the CLI; empty: not sent")

    # Observation
    metrics_host: str = Field("127.0.0.1", description="address of the worker metrics and health")
    metrics_port: int = Field(0, ge=0, le=65535, description="of a worker's /metrics; 0: a free port")
    observe_seconds: float = Field(
        15.0, ge=1, description="how often a control worker counts live batches and queues for its metrics"
    )
    metrics_tenants: int = Field(
        20, ge=0, le=1000, description="tenants with metrics under their own name; all others are `other`"
    )
    log_format: str = Field("text", pattern="^(text|json)$", description="text or json")
    log_level: str = Field(
        "INFO", pattern="^(DEBUG|INFO|WARNING|ERROR)$", description="DEBUG, INFO, WARNING or ERROR"
    )
    trace_request_ratio: float = Field(
        1.0, ge=0, le=1, description="share of requests with a span of their own, in traces that are kept"
    )

    # Limits of the contract (R13)
    max_lines: int = Field(50_000, ge=1, description="requests per batch")
    max_batch_file_bytes: int = Field(200 * MIB, ge=1, description="size of an input file (purpose batch)")
    max_file_bytes: int = Field(512 * MIB, ge=1, description="size of a file of another purpose")
    max_part_bytes: int = Field(64 * MIB, ge=1, description="size of one part of an upload")
    max_upload_bytes: int = Field(8192 * MIB, ge=1, description="size of a file that comes in parts")
    upload_seconds: int = Field(3600, ge=1, description="time an upload in parts is open")
    max_line_bytes: int = Field(10 * MIB, ge=1, description="size of one line of an input")
    max_embedding_inputs: int = Field(50_000, ge=1, description="embedding inputs over all lines of a batch")
    max_live_batches: int = Field(50, ge=0, description="per tenant; 0: no limit")
    one_model_per_batch: bool = Field(False, description="refuse batches with several models (R6)")
    strict_models: bool = Field(
        False, description="a model nobody serves fails the batch, not only its lines"
    )
    profile: Profile = Field(
        Profile.RELAXED, description="relaxed or strict: what is accepted beyond OpenAI (R7)"
    )
    min_window_seconds: int = Field(60, ge=1, description="shortest completion window of profile relaxed")
    max_window_seconds: int = Field(
        14 * 86_400, ge=60, description="longest completion window of profile relaxed"
    )

    # Batches
    cancel_grace_seconds: float = Field(
        30.0, ge=0, le=600, description="time for requests in flight when a batch is cancelled or paused (R3)"
    )
    expiry_grace_seconds: float = Field(
        5.0, ge=0, le=600, description="time for requests in flight when the window closes (R4)"
    )
    finalize_patience_seconds: float = Field(
        86_400.0, ge=60, description="how long finalization is retried before the batch fails (S0-46)"
    )
    heartbeat_timeout_seconds: float = Field(
        30.0, ge=10, description="silence after which a worker counts as dead"
    )
    slice_seconds: float = Field(30.0, ge=1, description="a slice's turn, from its first permit")
    outstanding_slices: int = Field(32, ge=1, le=500, description="scheduled at once per model run")
    continue_as_new_events: int = Field(
        0,
        ge=0,
        description="history length at which a model run continues as new; 0: when the server suggests it",
    )
    plan_order: str = Field(
        "prefix",
        pattern="^(prefix|hash|file)$",
        description="order of lines inside a plan: prefix, hash or file (R17)",
    )
    slice_lines: int = Field(256, ge=1, le=10_000, description="lines per slice at most")
    slice_bytes: int = Field(4 * MIB, ge=1024, description="bytes per slice at most, or one line")

    # Retention (R14)
    completed_file_retention_days: int = Field(
        30, ge=1, description="life of a completed batch's files, where the batch sets none"
    )
    partial_file_retention_days: int = Field(14, ge=1, description="the same, of other batches")
    metadata_retention_days: int = Field(
        90, ge=1, description="life of an ended batch's description, or as long as its files if that is more"
    )
    retention_grace_seconds: float = Field(
        3600.0, ge=60, description="time between the end of a file's life and its deletion"
    )
    orphan_hours: float = Field(
        48.0, ge=24, description="age from which objects that no row names, and files without object, go"
    )

    # Worker
    slots_per_model: int = Field(4, ge=1, description="slices at once per model and worker")
    io_slots: int = Field(2, ge=1, description="ingestions and finalizations at once per worker")
    global_in_flight: int = Field(100, ge=1, description="requests at once per worker (S0-25)")
    model_in_flight: int = Field(10, ge=1, description="requests at once per worker and model (S0-25)")
    models: dict[Annotated[str, Field(min_length=1)], ModelLimits] = Field(
        default={}, description="limits of single models, as JSON: `in_flight`, `requests_per_second`"
    )
    requests_per_second: float = Field(
        0.0, ge=0, le=MOST, description="of the whole fleet, over all models; 0: no limit"
    )
    dispatch_slots: int = Field(
        16, ge=1, description="slices at once per worker of the models that share the rate over all models"
    )
    byte_budget: int = Field(64 * MIB, ge=8 * MIB, description="bytes of bodies and answers held at once")
    max_response_bytes: int = Field(16 * MIB, ge=1024, description="size of one answer")
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
    drain_seconds: float = Field(30.0, ge=0, description="time a stopping worker gives its slices")
    startup_seconds: float = Field(
        30.0, ge=0, description="time a starting worker waits for Temporal and PostgreSQL"
    )
    deployment_name: str = Field(
        "", pattern=r"^[^.]{0,63}$", description="of Temporal's worker versioning; empty: unversioned"
    )
    build_id: str = Field("", max_length=63, description="of this build, where `deployment_name` is set")
    http_engine: str = Field(
        "socket",
        pattern="^(socket|httpx)$",
        description="what sends requests: our own sockets, or httpx's (R20)",
    )
    model_refresh_seconds: float = Field(
        5.0, gt=0, description="how often the list of served models is read again"
    )

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

    @field_validator("backends", "codec_origins")
    @classmethod
    def _http_urls(cls, urls: list[str]) -> list[str]:
        for url in urls:
            if not url.startswith(("http://", "https://")):
                raise ValueError(f"{url!r} does not begin with http:// or https://")
        return [url.rstrip("/") for url in urls]

    @field_validator("temporal_address")
    @classmethod
    def _host_and_port(cls, address: str) -> str:
        transport.check_address(address)
        return address

    @field_validator("temporal_api_key_file", "temporal_tls_key_file", "temporal_tls")
    @classmethod
    def _fits(cls, value: Path | bool | None, checked: ValidationInfo) -> Path | bool | None:
        if checked.field_name == "temporal_api_key_file":
            transport.check_one_key(value, checked.data)
        elif checked.field_name == "temporal_tls_key_file":
            transport.check_pair(value, checked.data)
        elif value is False:
            transport.check_plaintext(checked.data)
        return value

    @field_validator("payload_keys")
    @classmethod
    def _key_references(cls, references: list[str]) -> list[str]:
        key_references(references)
        return references

    @field_validator("storage")
    @classmethod
    def _storage_url(cls, url: str) -> str:
        if url:
            location(url)
        return url

    @field_validator("s3_sse_kms_key_id")
    @classmethod
    def _key_of_kms(cls, key: str, checked: ValidationInfo) -> str:
        if key and not str(checked.data.get("s3_sse", "")).startswith("aws:kms"):
            raise ValueError("a KMS key needs BATCHWRIGHT_S3_SSE=aws:kms")
        return key

    @field_validator("s3_endpoint_url")
    @classmethod
    def _http_url_or_unset(cls, url: str) -> str:
        return cls._http_urls([url])[0] if url else url

    @field_validator("url")
    @classmethod
    def _http_url(cls, url: str) -> str:
        if not url.startswith(("http://", "https://")):
            raise ValueError("it must begin with http:// or https://")
        return url.rstrip("/")


def from_environment(name: str) -> str:
    """A variable that a setting refers to by its name; empty where it is not set."""
    return os.environ.get(name, "")


def load(**overrides: object) -> Settings:
    """The settings of this process: `overrides` first, then the environment, then defaults.

    Raises:
        SettingsError: one sentence naming the setting and what is wrong with it.
    """
    try:
        return Settings(**overrides)  # pyright: ignore[reportArgumentType]
    except ValidationError as error:
        first = error.errors()[0]
        name = variable(str(first["loc"][0]))
        # A secret that landed in a wrong place must not land in a log too.
        hidden = not SECRETS.isdisjoint(str(part).lower() for part in first["loc"])
        value = "" if hidden else f" (it is {first['input']!r})"
        raise SettingsError(f"{name} is wrong: {what_is_wrong(first)}{value}.") from None
    except UnreadableSetting as error:
        # Of a list or map; the field's name is only in the message.
        name = "".join(re.findall(r'field "(\w+)"', str(error)))
        form = not_json(Settings.model_fields[name].annotation)
        raise SettingsError(f"{variable(name)} is wrong: {form}.") from None
