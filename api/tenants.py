"""Whose a request is: the tenant of its key, or the one that a header names."""

from typing import Annotated

from fastapi import Depends, Header, Request
from fastapi.params import Depends as DependsOn
from starlette.datastructures import Headers

from api.errors import ApiError, invalid_value
from api.parameters import pattern_schema
from batchwright.rules.ids import is_tenant
from batchwright.settings import Settings
from batchwright.telemetry.context import learn

# Of several tenants the last one counts.
_NAMES = r"^(.*,)?[ \t]*[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
ADMITTED = "batchwright.tenant"  # in the scope of a request that came through a door
KEY = "batchwright.key"  # the same with an API key: its id


def tenant_of(request: Request, settings: Settings) -> str:
    """Raises ApiError where the request names no tenant that can be."""
    if settings.auth != "none":
        admitted: str = request.scope[ADMITTED]
        return admitted
    tenant = named_tenant(request.headers, settings)
    learn(tenant=tenant)
    return tenant


def key_id_of(request: Request) -> str:
    """The id of the API key that the request came with; empty: none."""
    found: str = request.scope.get(KEY, "")
    return found


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
    tenant = _last(values)
    if not is_tenant(tenant):
        message = (
            f"Invalid {name} header: expected 1 to 64 letters, digits, '.', '_' or '-', the first of them "
            "a letter or digit."
        )
        raise invalid_value(name, message)
    return tenant


def named_scopes(headers: Headers, name: str) -> list[str]:
    """The words of the header's last value; none without the header. Those that are no scopes say nothing."""
    values = headers.getlist(name)
    return _last(values).split() if values else []


def _last(values: list[str]) -> str:
    """Of a header that was sent several times, or in one line with commas."""
    return values[-1].rpartition(",")[2].strip(" \t")


def documented(settings: Settings) -> DependsOn:
    """A dependency that puts the tenant's header into the OpenAPI description."""
    about = "the tenant of the key, which it may repeat" if settings.auth == "api_key" else "the tenant"

    async def header(
        tenant: Annotated[
            str | None,
            Header(alias=settings.tenant_header, description=about),
            pattern_schema(_NAMES),
        ] = None,
    ) -> None: ...

    return Depends(header)
