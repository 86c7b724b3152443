"""Temporal: its address, TLS, keys, and the encryption of payloads."""

from pathlib import Path

from pydantic import Field, SecretStr, ValidationInfo, field_validator
from pydantic_settings import BaseSettings

from batchwright.rules import transport
from batchwright.rules.keyring import key_references
from batchwright.settings.urls import http_urls


class TemporalSettings(BaseSettings):
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

    @field_validator("codec_origins")
    @classmethod
    def _web_uis(cls, urls: list[str]) -> list[str]:
        return http_urls(urls)

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
