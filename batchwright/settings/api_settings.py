"""Settings of the HTTP API, of authentication, and of the command line that calls the API."""

import ipaddress
import re
from typing import Annotated

from pydantic import Field, ValidationInfo, field_validator
from pydantic_settings import BaseSettings

from batchwright.rules.dispatch.fair_queue import MAX_WEIGHT, MIN_WEIGHT
from batchwright.settings.setting_levels import START, TUNING
from batchwright.settings.value_formats import check_tenant, host_names, http_url, issuer_url, web_origins

# The range of Temporal's fairness weights.
TenantWeight = Annotated[float, Field(ge=MIN_WEIGHT, le=MAX_WEIGHT, allow_inf_nan=False)]


class ApiSettings(BaseSettings):
    api_host: str = Field(
        "127.0.0.1",
        description="Address on which the API listens. An address beyond loopback requires "
        "`BATCHWRIGHT_AUTH` to be `api_key` or `trusted_header`.",
        json_schema_extra=START,
    )
    api_port: int = Field(
        8000,
        ge=0,
        le=65535,
        description="Port on which the API listens. `0`: any free port.",
        json_schema_extra=START,
    )
    api_cors_origins: list[str] = Field(
        default=[],
        description="Origins of web pages that may call the API, as a JSON list. Unset: no web page may.",
    )
    api_hosts: list[str] = Field(
        default=[],
        description="Further host names, without ports, under which clients may call an API that uses no "
        "API keys, as a JSON list. Always allowed: IP addresses, names without a dot, and names under "
        "`.localhost`, `.internal`, `.svc` and `.test`.",
    )
    ui: bool = Field(True, description="If true, the API serves pages for browsers at `/ui`.")
    interactive_passthrough: bool = Field(
        False,
        description="If true, the API also accepts single calls that cannot wait. It sends them to a backend "
        "at once, and passes on answers as streams if clients want streams. Workers leave room for these "
        "calls at backends with `in_flight`.",
    )
    tenant_weights: dict[str, TenantWeight] = Field(
        default={},
        description="Relative share of capacity of each tenant, from 0.001 to 1000, as a JSON object. "
        "Tenants that are not listed have 1.0. `batchwright quotas set --weight` overrides it at run time.",
        json_schema_extra=TUNING,
    )

    # Command line
    url: str = Field(
        "http://127.0.0.1:8000",
        description="URL of the API that the command line calls.",
        json_schema_extra=START,
    )
    api_key: str = Field(
        "",
        description="API key, or token of `BATCHWRIGHT_OIDC_ISSUER`, that the command line sends to the API.",
        json_schema_extra=START,
    )
    tenant: str = Field(
        "",
        description="Tenant that the command line names to the API, in the header "
        "`BATCHWRIGHT_TENANT_HEADER`. Unset: the header is not sent.",
    )

    def weight_of(self, tenant: str) -> float:
        """Return the weight of a tenant from the settings; 1.0 if the settings have none.

        Tenants share the capacity in proportion to their weights. Weights that were set at run time are
        ignored here.
        """
        return self.tenant_weights.get(tenant, 1.0)

    @field_validator("api_cors_origins")
    @classmethod
    def _origins(cls, origins: list[str]) -> list[str]:
        return web_origins(origins)

    @field_validator("api_hosts")
    @classmethod
    def _hosts(cls, names: list[str]) -> list[str]:
        return host_names(names)

    @field_validator("api_key")
    @classmethod
    def _in_a_header(cls, key: str) -> str:
        if not re.fullmatch(r"[\x21-\x7e]*", key):
            raise ValueError("a key has no spaces, line ends or characters beyond ASCII")
        return key

    @field_validator("tenant")
    @classmethod
    def _tenant(cls, name: str) -> str:
        return check_tenant(name)

    @field_validator("url")
    @classmethod
    def _http_url(cls, url: str) -> str:
        return http_url(url)


class AccessSettings(BaseSettings):
    auth: str = Field(
        "none",
        pattern="^(none|api_key|trusted_header)$",
        description="How callers of the API authenticate. `none`: they do not, and each caller may act "
        "for every tenant; the API then listens on loopback addresses only. `api_key`: with "
        "keys from `batchwright keys`. `trusted_header`: a gateway in front of the API sets "
        "the tenant in a header, and only that gateway can reach the API.",
        json_schema_extra=START,
    )
    tenant_header: str = Field(
        "X-Tenant",
        pattern="^[A-Za-z0-9-]{1,64}$",
        description="Request header with the tenant's name. If it has several values, the last one counts.",
    )
    scopes_header: str = Field(
        "",
        pattern="^[A-Za-z0-9-]{0,64}$",
        description="If `BATCHWRIGHT_AUTH` is `trusted_header`: request header with the caller's scopes, "
        "such as `read write`. If it has several values, the last one counts. Unset: every "
        "caller may read and write, and no caller may use `/admin`.",
    )
    default_tenant: str = Field(
        "default",
        description="If `BATCHWRIGHT_AUTH` is `none`: tenant of requests without the header "
        "`BATCHWRIGHT_TENANT_HEADER`. Empty: such requests are rejected.",
    )
    auth_failures_per_minute: int = Field(
        600,
        ge=0,
        description="Failed authentications allowed for each client address and minute. Beyond that, keys "
        "that the process does not already know get 429. `0`: no limit.",
    )
    trusted_proxies: list[str] = Field(
        default=[],
        description="Addresses or networks of proxies whose `X-Forwarded-For` header is trusted, as a "
        "JSON list.",
    )
    oidc_issuer: str = Field(
        "",
        description="If `BATCHWRIGHT_AUTH` is `api_key`: OpenID Connect issuer whose tokens are accepted "
        "beside keys, such as `https://login.example.com/realms/acme`, exactly as tokens have it in `iss`. "
        "Unset: only keys are accepted.",
    )
    oidc_audience: str = Field(
        "",
        validate_default=True,
        description="Audience that a token must have in `aud`. Required if `BATCHWRIGHT_OIDC_ISSUER` is set.",
    )
    oidc_tenant_claim: str = Field(
        "tenant",
        min_length=1,
        description="Claim of a token that contains the tenant's name. Choose one that users cannot change. "
        "A name that begins with `/` is the path to a claim in objects, such as `/realm_access/roles`.",
    )
    oidc_user_claim: str = Field(
        "sub",
        min_length=1,
        description="Claim of a token that identifies the user in logs, or the path to it.",
    )
    oidc_scopes_claim: str = Field(
        "scope",
        description="Claim of a token with the caller's scopes, or the path to it. The claim is a list, or a "
        "text such as `read write`. "
        "Other values in it are ignored. Empty: every token may read and write, and none may use `/admin`.",
    )

    @field_validator("default_tenant")
    @classmethod
    def _tenant(cls, name: str) -> str:
        return check_tenant(name)

    @field_validator("oidc_issuer")
    @classmethod
    def _issuer(cls, url: str) -> str:
        return issuer_url(url) if url else url

    @field_validator("oidc_audience")
    @classmethod
    def _audience(cls, audience: str, checked: ValidationInfo) -> str:
        if checked.data.get("oidc_issuer") and not audience:
            raise ValueError("BATCHWRIGHT_OIDC_ISSUER needs the audience of its tokens")
        return audience

    @field_validator("trusted_proxies")
    @classmethod
    def _networks(cls, proxies: list[str]) -> list[str]:
        for proxy in proxies:
            try:
                ipaddress.ip_network(proxy, strict=False)
            except ValueError:
                raise ValueError(f"{proxy!r} is not an address or network such as 10.0.0.0/8") from None
        return proxies
