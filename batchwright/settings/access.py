"""Who may use the API, and whose a request is."""

import ipaddress

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings

from batchwright.settings.names import tenant_or_none


class AccessSettings(BaseSettings):
    auth: str = Field(
        "none",
        pattern="^(none|api_key|trusted_header)$",
        description="`none`: whoever reaches the API acts for every tenant, on loopback addresses only; "
        "`api_key`: keys that `batchwright keys` makes; "
        "`trusted_header`: a gateway in front tells the tenant, and nobody else reaches the API",
    )
    tenant_header: str = Field(
        "X-Tenant",
        pattern="^[A-Za-z0-9-]{1,64}$",
        description="the header that names the tenant; of several values the last counts",
    )
    scopes_header: str = Field(
        "",
        pattern="^[A-Za-z0-9-]{0,64}$",
        description="with `trusted_header`: the header that names the caller's scopes, as in `read write`; "
        "of several values the last counts; unset: callers may do everything",
    )
    default_tenant: str = Field(
        "default", description="tenant of a request without that header; empty: such requests are refused"
    )
    auth_failures_per_minute: int = Field(
        30,
        ge=0,
        description="wrong keys a client address may send before it is answered 429; 0: no limit",
    )
    trusted_proxies: list[str] = Field(
        default=[],
        description="addresses or networks, as a JSON list, of proxies whose X-Forwarded-For is believed",
    )

    @field_validator("default_tenant")
    @classmethod
    def _tenant(cls, name: str) -> str:
        return tenant_or_none(name)

    @field_validator("trusted_proxies")
    @classmethod
    def _networks(cls, proxies: list[str]) -> list[str]:
        for proxy in proxies:
            try:
                ipaddress.ip_network(proxy, strict=False)
            except ValueError:
                raise ValueError(f"{proxy!r} is no address or network, such as 10.0.0.0/8") from None
        return proxies
