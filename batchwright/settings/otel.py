"""Settings of traces, by the names that every OpenTelemetry SDK has for them (S0-55).

The SDK itself reads timeouts, certificates, compression, OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES.
"""

from enum import StrEnum
from typing import Literal

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings

_PREFIX = "otel_"


def variable(name: str) -> str:
    """The environment variable of a setting."""
    upper = name.upper()
    return upper if name.lower().startswith(_PREFIX) else f"BATCHWRIGHT_{upper}"


class Sampler(StrEnum):
    """Which traces are kept; the parent-based ones go by the caller's decision where there is a caller."""

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
        description="base URL of an OTLP collector; unset: no traces",
    )
    otel_exporter_otlp_traces_endpoint: str = Field(
        "", validation_alias="OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", description="whole URL for traces, instead"
    )
    otel_exporter_otlp_protocol: Literal["http/protobuf"] = Field(
        "http/protobuf",
        validation_alias="OTEL_EXPORTER_OTLP_PROTOCOL",
        description="the only one: port 4318 of a collector, not 4317",
    )
    otel_exporter_otlp_headers: str = Field(
        "",
        validation_alias="OTEL_EXPORTER_OTLP_HEADERS",
        description="`name=value,...` sent to the collector, such as its API key",
    )
    otel_exporter_otlp_traces_headers: str = Field(
        "", validation_alias="OTEL_EXPORTER_OTLP_TRACES_HEADERS", description="the same, for traces only"
    )
    otel_traces_exporter: Literal["otlp", "none"] = Field(
        "otlp", validation_alias="OTEL_TRACES_EXPORTER", description="otlp, or none: no traces"
    )
    otel_sdk_disabled: bool = Field(
        False, validation_alias="OTEL_SDK_DISABLED", description="true: no traces"
    )
    otel_traces_sampler: Sampler = Field(
        Sampler.PARENT_ALWAYS_ON,
        validation_alias="OTEL_TRACES_SAMPLER",
        description="which traces are kept: " + ", ".join(Sampler),
    )
    otel_traces_sampler_arg: float = Field(
        1.0,
        validation_alias="OTEL_TRACES_SAMPLER_ARG",
        ge=0,
        le=1,
        description="share of traces that the ratio samplers keep",
    )

    @property
    def traces_url(self) -> str:
        """Where spans go; empty: nowhere, tracing is off."""
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
