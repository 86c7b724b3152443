"""Settings of Temporal: address, TLS, API key, and payload encryption."""

from pathlib import Path

from pydantic import Field, SecretStr, ValidationInfo, field_validator
from pydantic_settings import BaseSettings

from batchwright.rules import temporal_setting_checks
from batchwright.rules.key_references import parse_key_references
from batchwright.settings.setting_levels import START, TUNING
from batchwright.settings.value_formats import http_urls


class TemporalSettings(BaseSettings):
    temporal_address: str = Field(
        "127.0.0.1:7233",
        description="Address of the Temporal frontend, as `host:port`.",
        json_schema_extra=START,
    )
    temporal_namespace: str = Field(
        "default", description="Temporal namespace of the workflows.", json_schema_extra=TUNING
    )
    temporal_ui_url: str = Field(
        "",
        description="URL of Temporal's Web UI. Commands and the pages at `/ui` link to it; no process "
        "connects to it.",
    )
    temporal_api_key: SecretStr | None = Field(
        None, description="API key for Temporal. It is sent only over TLS or to a loopback address."
    )
    temporal_api_key_file: Path | None = Field(
        None, description="File that contains the API key for Temporal. It is read again when it changes."
    )
    temporal_tls_ca_file: Path | None = Field(
        None,
        description="PEM file with the CA certificates that signed Temporal's certificate. Unset: the "
        "system's CA certificates.",
    )
    temporal_tls_cert_file: Path | None = Field(
        None,
        description="PEM file with the client certificate for Temporal. It is read again when it changes.",
    )
    temporal_tls_key_file: Path | None = Field(
        None, description="PEM file with the private key of the client certificate."
    )
    temporal_tls_server_name: str = Field(
        "",
        description="Host name in Temporal's certificate. Unset: the host of `BATCHWRIGHT_TEMPORAL_ADDRESS`.",
    )
    temporal_tls: bool | None = Field(
        None,
        description="If true, connect to Temporal over TLS. Unset: TLS is used if an API key, a "
        "certificate or a server name is set.",
    )
    temporal_retention_days: int | None = Field(
        None,
        ge=1,
        le=3650,
        description="Days that Temporal keeps ended workflows. `batchwright setup temporal` sets this in "
        "the namespace. Unset: 14 days in a namespace that the command creates; an existing "
        "namespace is not changed.",
    )
    payload_keys: list[str] = Field(
        default=[],
        description="Keys that encrypt payloads in Temporal, as a JSON list of `id=file:PATH` or "
        "`id=env:NAME`. The first key encrypts; all keys decrypt. Unset: payloads are not "
        "encrypted.",
    )
    codec_host: str = Field("127.0.0.1", description="Address on which `batchwright codec-server` listens.")
    codec_trusted_network: bool = Field(
        False,
        description="Set this to true to confirm that only people who may read every payload can reach "
        "the codec server. Required if it listens on an address beyond loopback.",
    )
    codec_port: int = Field(
        8081,
        ge=0,
        le=65535,
        description="Port on which `batchwright codec-server` listens. `0`: any free port.",
    )
    codec_origins: list[str] = Field(
        default=[],
        description="Origins of the Web UIs that may call the codec server, as a JSON list. Unset: the "
        "origin of `BATCHWRIGHT_TEMPORAL_UI_URL`.",
    )

    @field_validator("codec_origins")
    @classmethod
    def _web_uis(cls, urls: list[str]) -> list[str]:
        return http_urls(urls)

    @field_validator("temporal_address")
    @classmethod
    def _host_and_port(cls, address: str) -> str:
        temporal_setting_checks.check_address(address)
        return address

    @field_validator("temporal_api_key_file", "temporal_tls_key_file", "temporal_tls")
    @classmethod
    def _fits(cls, value: Path | bool | None, checked: ValidationInfo) -> Path | bool | None:
        if checked.field_name == "temporal_api_key_file":
            temporal_setting_checks.check_single_api_key(value, checked.data)
        elif checked.field_name == "temporal_tls_key_file":
            temporal_setting_checks.check_client_certificate(value, checked.data)
        elif value is False:
            temporal_setting_checks.check_tls_disabled(checked.data)
        return value

    @field_validator("payload_keys")
    @classmethod
    def _key_references(cls, references: list[str]) -> list[str]:
        parse_key_references(references)
        return references
