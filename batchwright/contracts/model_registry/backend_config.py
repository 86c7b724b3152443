"""Registry settings of a backend: its URL, and how requests are sent to it."""

import ipaddress
import re
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from batchwright.contracts.model_registry.config_base import PositiveDuration, RegistryEntry

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
# Settings of a backend with headers. Their values may contain secrets.
HEADER_SETTINGS = ("headers", "batch_headers")


class BackendConfig(RegistryEntry):
    """The configuration of one backend of a model: its URL, and how requests are sent to it.

    A timeout that is not set here has the value of the setting for all backends.
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
    batch_headers: dict[str, str] = Field(
        default={},
        description="headers added to requests of batches, and not to interactive calls: for backends and "
        "gateways that serve batches after people; they replace `headers` with the same name",
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
        description="top-level field `priority` in the bodies of batches, for servers that schedule by it; "
        "it replaces the line's own; unset: bodies stay as they are",
    )
    send_dispatch_header: bool = Field(
        default=False,
        description="add the header `BATCHWRIGHT_DISPATCH_HEADER` to every request of a batch, so that the "
        "backend can tell them from direct ones",
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

    @field_validator(*HEADER_SETTINGS)
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


def check_header_name(name: str) -> None:
    """Raise ValueError if operators may not configure a request header with this name.

    A name is refused if it is invalid. Names of headers for credentials, and of headers that Batchwright sets
    itself, are also refused.
    """
    if not _HEADER_NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not a header name")
    if name.lower() in CREDENTIAL_HEADERS:
        raise ValueError(f"the header {name!r} holds a credential: use api_key_name")
    if name.lower() in RESERVED_HEADERS:
        raise ValueError(f"the header {name!r} is set by Batchwright itself: remove it, or use another name")
