"""Identity of a caller: its tenant, its API key, and the headers that its batches forward to backends."""

from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import Depends, Header, Request
from fastapi.params import Depends as DependsOn
from starlette.datastructures import Headers

from batchwright.api.errors import ApiError, invalid_value
from batchwright.api.openapi import pattern_schema
from batchwright.contracts.temporal_payloads.batch import Caller
from batchwright.database.records import ApiKeyRow
from batchwright.rules.backends.request_headers import check_passed_value
from batchwright.rules.ids import is_tenant
from batchwright.settings import Settings
from batchwright.telemetry.context import add_fields
from batchwright.telemetry.redaction import Redactor

# If a header names several tenants, the last one is used.
_HEADER_PATTERN = r"^(.*,)?[ \t]*[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
SCOPE_TENANT = "batchwright.tenant"  # key of the authenticated tenant in the ASGI scope
SCOPE_KEY_ID = "batchwright.key"  # key of the API key's id in the ASGI scope
SCOPE_SESSION_KEY = "batchwright.session"  # key of the `SessionKey` of a visitor of the pages
SCOPE_USER = "batchwright.user"  # key of the user of a token in the ASGI scope


# Returns the API key with which a visitor of the pages signed in; None if the session has ended.
SessionKey = Callable[[], Awaitable[ApiKeyRow | None]]


def tenant_of(request: Request, settings: Settings) -> str:
    """Return the tenant of the request.

    With authentication, this is the tenant that `AuthenticationMiddleware` has stored in the ASGI scope.
    Without authentication, it is the tenant in the tenant header, or the default tenant if that header is
    missing.

    Raises:
        ApiError: the request names no tenant or an invalid one.
    """
    if settings.auth != "none":
        admitted: str = request.scope[SCOPE_TENANT]
        return admitted
    tenant = tenant_from_headers(request.headers, settings)
    add_fields(tenant=tenant)
    return tenant


def key_id_of(request: Request) -> str:
    """Return the id of the request's API key; empty if the request was accepted without a key."""
    found: str = request.scope.get(SCOPE_KEY_ID, "")
    return found


def user_of(request: Request) -> str:
    """Return the user in the request's token; empty if the request has no token."""
    found: str = request.scope.get(SCOPE_USER, "")
    return found


def operator_of(request: Request) -> str:
    """Return a name for the caller of an admin route, for the log; empty if authentication is off.

    The name is the id of the API key, the user in the token, or the tenant that a gateway has stated.
    """
    return key_id_of(request) or request.scope.get(SCOPE_USER) or request.scope.get(SCOPE_TENANT, "")


def tenant_from_headers(headers: Headers, settings: Settings) -> str:
    """Return the tenant in the tenant header.

    If the header has several values, the last one is used, because a gateway appends its own value. If the
    header is missing and authentication is off, return the default tenant.

    Raises:
        ApiError: the header contains no valid tenant, or the header is missing and there is no default
            tenant.
    """
    name = settings.tenant_header
    values = headers.getlist(name)
    if not values and settings.auth == "none" and settings.default_tenant:
        return settings.default_tenant
    if not values:
        message = f"This request names no tenant: the header {name} is missing."
        raise ApiError(401, message, code="tenant_missing", param=name)
    tenant = _last_value(values)
    if not is_tenant(tenant):
        message = (
            f"Invalid {name} header: expected 1 to 64 letters, digits, '.', '_' or '-', the first of them "
            "a letter or digit."
        )
        raise invalid_value(name, message)
    return tenant


def scopes_from_headers(headers: Headers, name: str) -> list[str]:
    """Return the caller's scopes (rights) from the last value of the header `name`; empty if the header is
    missing.
    """
    values = headers.getlist(name)
    return _last_value(values).split() if values else []


def _last_value(values: list[str]) -> str:
    """Return the last value of a header.

    The header can occur several times in a request: `values` has one text for each time. Each text can
    contain several values, separated by commas.
    """
    return values[-1].rpartition(",")[2].strip(" \t")


def tenant_header_parameter(settings: Settings) -> DependsOn:
    """Return a FastAPI dependency that describes the tenant header in `/openapi.json`. It does not check the
    header.
    """
    about = (
        "optional; it has to be the tenant of the key or token"
        if settings.auth == "api_key"
        else "the tenant"
    )

    async def header(
        tenant: Annotated[
            str | None,
            Header(alias=settings.tenant_header, description=about),
            pattern_schema(_HEADER_PATTERN),
        ] = None,
    ) -> None: ...

    return Depends(header)


_REDACTOR = Redactor()


def caller_of(request: Request, settings: Settings) -> Caller:
    """Return the caller of a request: the id of its API key, and the request headers to pass on to backends.

    `settings.passed_headers` names the headers to pass on.

    Raises:
        ApiError: one of these headers has a value that cannot be sent or that looks like a credential.
    """
    sent = {name: request.headers.getlist(name) for name in settings.passed_headers}
    headers = {name: ", ".join(values) for name, values in sent.items() if values}
    for name, value in headers.items():
        # The errors do not contain the value, because it may be a secret in the wrong place.
        try:
            check_passed_value(value)
        except ValueError as error:
            raise _header_not_passed(name, str(error)) from None
        if _REDACTOR(value) != value:
            raise _header_not_passed(name, "it looks like a credential, which would be kept with the batch")
    return Caller(key_id=key_id_of(request), headers=headers)


def _header_not_passed(name: str, problem: str) -> ApiError:
    return invalid_value(name, f"The header '{name}' cannot be passed on to backends: {problem}.")
