"""The HTTP API, and the command line that talks to it."""

import re

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings

from batchwright.settings.names import tenant_or_none
from batchwright.settings.urls import http_url


class ApiSettings(BaseSettings):
    api_host: str = Field(
        "127.0.0.1",
        description="address the API listens on; beyond loopback only if `auth` is not none",
    )
    api_port: int = Field(8000, ge=0, le=65535, description="0: a free port")
    api_cors_origins: list[str] = Field(
        default=[], description="origins whose web pages may call the API, as a JSON list; unset: none"
    )
    api_hosts: list[str] = Field(
        default=[],
        description="more names by which an API without authentication may be called, as a JSON list; "
        "loopback addresses and names of the machine or of a cluster (`.svc`) always may",
    )
    api_header_seconds: float = Field(15.0, gt=0, description="time for a request's headers to come")
    api_silence_seconds: float = Field(
        60.0, gt=0, description="longest silence in a request's body, and of a client that reads no answer"
    )
    api_body_bytes_per_second: float = Field(
        1000.0,
        ge=0,
        description="least speed of a request's body; one that falls `api_silence_seconds` behind is refused "
        "(408); 0: any speed",
    )
    api_completes: int = Field(
        4,
        ge=1,
        description="uploads that a process joins at once, half of them of one tenant; others wait",
    )
    api_complete_wait_seconds: float = Field(
        60.0, ge=0, description="how long for, before they are answered 429"
    )
    tenant_weights: dict[str, float] = Field(default={}, description="share of a tenant; 1.0 where unset")

    # Command line
    url: str = Field("http://127.0.0.1:8000", description="address of the API that the CLI talks to")
    api_key: str = Field("", description="sent as Bearer to the API by the CLI")
    tenant: str = Field("", description="sent in `tenant_header` by the CLI; empty: not sent")

    @field_validator("api_key")
    @classmethod
    def _in_a_header(cls, key: str) -> str:
        if not re.fullmatch(r"[\x21-\x7e]*", key):
            raise ValueError("a key has no spaces, line ends or characters beyond ASCII")
        return key

    @field_validator("tenant")
    @classmethod
    def _tenant(cls, name: str) -> str:
        return tenant_or_none(name)

    @field_validator("url")
    @classmethod
    def _http_url(cls, url: str) -> str:
        return http_url(url)
