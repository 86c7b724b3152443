"""Whose a request is: the tenant of its key, or the one that a header names."""

from typing import Annotated

from fastapi import Header, Request
from starlette.datastructures import Headers

from api.errors import ApiError, invalid_value
from api.parameters import pattern_schema
from batchwright.rules.ids import is_tenant
from batchwright.settings import Settings
from batchwright.telemetry.context import learn

ADMITTED = "batchwright.tenant"  # in the scope of a request that came through a door


def tenant_of(request: Request, settings: Settings) -> str:
    """Raises ApiError where the request names no tenant that can be."""
    if settings.auth != "none":
        admitted: str = request.scope[ADMITTED]
        return admitted
    tenant = named_tenant(request.headers, settings)
    learn(tenant=tenant)
    return tenant


def named_tenant(headers: Headers, settings: Settings) -> str:
    """Of the header, or the default one. The last value wins: what a gateway adds follows what a client sent.

    Raises ApiError.
    """
    name = settings.tenant_header
    values = headers.getlist(name)
    if not values and settings.default_tenant:
        return settings.default_tenant
    if not values:
        message = f"This request names no tenant: the header {name} is missing."
        raise ApiError(401, message, code="tenant_missing", param=name)
    tenant = values[-1].rpartition(",")[2].strip(" \t")
    if not is_tenant(tenant):
        message = (
            f"Invalid {name} header: expected 1 to 64 letters, digits, '.', '_' or '-', the first of them "
            "a letter or digit."
        )
        raise invalid_value(name, message)
    return tenant


def documented(
    x_tenant: Annotated[
        str | None,
        Header(description="the tenant, if it is not the key's; BATCHWRIGHT_TENANT_HEADER may name another"),
        pattern_schema(r"^(.*,)?[ \t]*[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"),  # of several the last one counts
    ] = None,
) -> None:
    """A dependency that puts the header into the OpenAPI description."""
