"""Whose request it is: the X-Tenant header, believed because only this machine can send it (loopback)."""

from typing import Annotated

from fastapi import Header, Request

from api.errors import invalid_value
from api.parameters import pattern_schema
from batchwright.rules.ids import is_tenant
from batchwright.settings import Settings
from batchwright.telemetry.context import learn


def tenant_of(request: Request, settings: Settings) -> str:
    tenant = request.headers.get("x-tenant", settings.default_tenant)
    if not is_tenant(tenant):
        message = (
            "Invalid X-Tenant header: expected 1 to 64 letters, digits, '.', '_' or '-', the first of them "
            "a letter or digit."
        )
        raise invalid_value("X-Tenant", message)
    learn(tenant=tenant)
    return tenant


def documented(
    x_tenant: Annotated[
        str | None,
        Header(description="the tenant; the default one if absent"),
        pattern_schema("^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"),
    ] = None,
) -> None:
    """A dependency that puts the header into the OpenAPI description."""
