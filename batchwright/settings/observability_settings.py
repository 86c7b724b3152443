"""Settings of metrics, logs and traces.

Settings of traces have the standard names of OpenTelemetry. OpenTelemetry's SDK itself reads
OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES, and the variables for timeouts, certificates and compression.
"""

from enum import StrEnum
from typing import Literal

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings

from batchwright.settings.setting_levels import TUNING

_PREFIX = "otel_"


def variable_name(name: str) -> str:
    """Return the name of the environment variable from which a setting is read."""
    upper = name.upper()
    return upper if name.lower().startswith(_PREFIX) else f"BATCHWRIGHT_{upper}"


class Sampler(StrEnum):
    """The rules that decide which traces are recorded.

    - If a request belongs to a trace of its caller, the rule `parentbased_X` records the request only if the
      caller records the trace.
    - If a request belongs to no such trace, the rule `parentbased_X` decides like the rule X.
    - A rule without `parentbased` ignores the decision of the caller.
    """

    ALWAYS_ON = "always_on"
    ALWAYS_OFF = "always_off"
    RATIO = "traceidratio"
    PARENT_ALWAYS_ON = "parentbased_always_on"
    PARENT_ALWAYS_OFF = "parentbased_always_off"
    PARENT_RATIO = "parentbased_traceidratio"


class OtelSettings(BaseSettings):
    otel_exporter_otlp_endpoint: str = Field(
        "",
        validation_alias="OTEL_EXPORTER_OTLP_ENDPOINT",
        description="Base URL of an OpenTelemetry collector that receives traces. Unset: no traces.",
        json_schema_extra=TUNING,
    )
    otel_exporter_otlp_traces_endpoint: str = Field(
        "",
        validation_alias="OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
        description="Complete URL for traces. It takes precedence over `OTEL_EXPORTER_OTLP_ENDPOINT`.",
    )
    otel_exporter_otlp_protocol: Literal["http/protobuf"] = Field(
        "http/protobuf",
        validation_alias="OTEL_EXPORTER_OTLP_PROTOCOL",
        description="Protocol to the collector. Only HTTP is supported, usually on the collector's port "
        "4318.",
    )
    otel_exporter_otlp_headers: str = Field(
        "",
        validation_alias="OTEL_EXPORTER_OTLP_HEADERS",
        description="Headers sent to the collector, such as its API key, as `name=value,name=value`.",
    )
    otel_exporter_otlp_traces_headers: str = Field(
        "",
        validation_alias="OTEL_EXPORTER_OTLP_TRACES_HEADERS",
        description="Headers sent to the collector with traces only. They take precedence over "
        "`OTEL_EXPORTER_OTLP_HEADERS`.",
    )
    otel_traces_exporter: Literal["otlp", "none"] = Field(
        "otlp",
        validation_alias="OTEL_TRACES_EXPORTER",
        description="`otlp`: send traces to the collector. `none`: no traces.",
    )
    otel_sdk_disabled: bool = Field(
        False, validation_alias="OTEL_SDK_DISABLED", description="If true, no traces."
    )
    otel_traces_sampler: Sampler = Field(
        Sampler.PARENT_ALWAYS_ON,
        validation_alias="OTEL_TRACES_SAMPLER",
        description="Which traces are kept: " + ", ".join(f"`{name}`" for name in Sampler) + ".",
    )
    otel_traces_sampler_arg: float = Field(
        1.0,
        validation_alias="OTEL_TRACES_SAMPLER_ARG",
        ge=0,
        le=1,
        description="Share of traces that the samplers `traceidratio` and `parentbased_traceidratio` "
        "keep, from 0 to 1. `0`: none.",
    )

    @property
    def traces_url(self) -> str:
        """URL to which trace spans are sent; empty if tracing is off."""
        if self.otel_sdk_disabled or self.otel_traces_exporter == "none":
            return ""
        base = self.otel_exporter_otlp_endpoint.rstrip("/")
        return self.otel_exporter_otlp_traces_endpoint or (base and base + "/v1/traces")

    @field_validator("otel_exporter_otlp_endpoint", "otel_exporter_otlp_traces_endpoint")
    @classmethod
    def _collector(cls, url: str) -> str:
        if url and not url.startswith(("http://", "https://")):
            raise ValueError("it must begin with http:// or https://")
        return url


class ObservabilitySettings(BaseSettings):
    metrics_host: str = Field(
        "127.0.0.1", description="Address on which a worker serves metrics and health checks."
    )
    metrics_port: int = Field(
        0,
        ge=0,
        le=65535,
        description="Port on which a worker serves metrics and health checks. `0`: any free port.",
        json_schema_extra=TUNING,
    )
    metrics_tenants: int = Field(
        20,
        ge=0,
        le=1000,
        description="Number of tenants with their own label in metrics. All other tenants share the label "
        "`other`. `0`: all share it.",
    )
    log_format: str = Field(
        "text",
        pattern="^(text|json)$",
        description="Format of log entries: `text` or `json`.",
        json_schema_extra=TUNING,
    )
    log_level: str = Field(
        "INFO",
        pattern="^(DEBUG|INFO|WARNING|ERROR)$",
        description="Lowest level of log entries that are written: `DEBUG`, `INFO`, `WARNING` or `ERROR`.",
        json_schema_extra=TUNING,
    )
    trace_request_ratio: float = Field(
        1.0,
        ge=0,
        le=1,
        description="Share of requests to backends that have their own span, from 0 to 1, in traces that "
        "are kept. `0`: no request has one.",
    )
