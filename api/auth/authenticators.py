"""Authenticators: find the tenant of a request by its API key or by the headers of a gateway."""

import logging
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import Protocol

from starlette.datastructures import Headers
from starlette.types import Scope

from batchwright.api.auth.caller import SCOPE_KEY_ID, SCOPE_TENANT, scopes_from_headers, tenant_from_headers
from batchwright.api.auth.failure_limiter import FailureLimiter
from batchwright.api.auth.key_cache import CACHE_SECONDS, KeyCache, KeyUsageRecorder
from batchwright.api.dependencies import ApiDependencies
from batchwright.api.errors import ApiError
from batchwright.database.errors import DatabaseUnavailable
from batchwright.database.records import ApiKeyRow
from batchwright.database.tenants.tenants import TenantsTable
from batchwright.rules.api_keys import ApiKey, is_granted, parse_key, required_scope
from batchwright.rules.api_keys import Scope as ApiScope
from batchwright.settings import Settings
from batchwright.telemetry.context import add_fields

AZURE_KEY_HEADER = "api-key"  # sent by clients of Azure OpenAI instead of Authorization
_BEARER = re.compile(r"bearer +([\x21-\x7e]+)", re.IGNORECASE)
logger = logging.getLogger(__name__)

_CHALLENGE = {"WWW-Authenticate": "Bearer"}
_MAX_TENANTS = 10_000
_DEFAULT_SCOPES = frozenset({ApiScope.READ, ApiScope.WRITE})  # scopes of callers if the gateway sends none


class AccessDenied(ApiError):
    """Error response for a caller without access. `reason` is a short word for metrics and the log."""

    def __init__(
        self, reason: str, status: int, message: str, *, code: str, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(status, message, code=code, headers=headers)
        self.reason = reason


class Authenticator(Protocol):
    async def authenticate(self, scope: Scope) -> str:
        """Return the tenant of the request, and store it in the ASGI scope.

        If the caller is known but lacks the scope of the route, the tenant is stored, too.

        Raises:
            ApiError: the caller has no access, or a header is not valid.
            DatabaseUnavailable: the database does not respond, so access cannot be checked.
        """
        ...


def build_authenticator(deps: ApiDependencies) -> Authenticator | None:
    """Return the authenticator that the settings select; None if requests need no authentication."""
    match deps.settings.auth:
        case "api_key":
            return ApiKeyAuthenticator(deps)
        case "trusted_header":
            return TrustedHeaderAuthenticator(deps.database.tenants, deps.settings)
        case _:
            return None


class ApiKeyAuthenticator:
    """Accepts requests with a valid API key whose scopes allow the route."""

    def __init__(self, deps: ApiDependencies, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._settings = deps.settings
        self._clock = deps.clock
        self._keys = KeyCache(deps.database.api_keys, deps.clock, monotonic)
        self._failures = FailureLimiter(deps.settings.auth_failures_per_minute, monotonic)
        self._warned_of_proxies = False
        self.usage = KeyUsageRecorder(deps.database.api_keys)

    async def authenticate(self, scope: Scope) -> str:
        headers = Headers(scope=scope)
        client: tuple[str, int] | None = scope.get("client")
        address = client[0] if client else ""
        self._warn_of_proxies(headers, address)
        row = await self._row_of(_key_from_headers(headers), address)
        add_fields(tenant=row.tenant, key_id=row.id)
        self.usage.record(row, self._clock())
        name = self._settings.tenant_header
        if name in headers and tenant_from_headers(headers, self._settings) != row.tenant:
            message = (
                f"The API key belongs to another tenant than the header {name} names; leave the header out."
            )
            raise AccessDenied("tenant", 403, message, code="tenant_mismatch")
        scope[SCOPE_TENANT], scope[SCOPE_KEY_ID] = row.tenant, row.id
        _check_scope(row.scopes, scope, "This API key")
        return row.tenant

    async def _row_of(self, key: ApiKey | None, address: str) -> ApiKeyRow:
        """Return the database row of the API key.

        Args:
            key: the key in the request; None if the request's text cannot be a key.
            address: address of the client. The number of wrong keys per address is limited.

        Raises:
            AccessDenied: the key is None or not valid, or its address has sent too many wrong keys.
        """
        if key is None:
            raise _invalid_key()
        # Wrong keys from the same address do not lock out a key that was valid before.
        row = await (self._keys.verify(key) if self._keys.is_cached(key) else self._verify_new(key, address))
        if row is None:
            raise _invalid_key()
        return row

    async def _verify_new(self, key: ApiKey, address: str) -> ApiKeyRow | None:
        """Look up a key that is not cached. Return its database row; None if the key is not valid.

        Raises:
            AccessDenied: the address has sent too many wrong keys.
        """
        if seconds := self._failures.wait_seconds(address):
            message = f"Too many wrong API keys came from your address. Try again in {seconds} s."
            headers = {"Retry-After": str(seconds)}
            raise AccessDenied("attempts", 429, message, code="rate_limit_exceeded", headers=headers)
        self._failures.acquire(address)
        try:
            row = await self._keys.verify(key)
        except DatabaseUnavailable:
            self._failures.release(address)
            raise
        if row is not None:
            self._failures.release(address)
        return row

    def _warn_of_proxies(self, headers: Headers, address: str) -> None:
        """Warn once if a proxy sends X-Forwarded-For but is not configured as trusted.

        All clients behind this proxy share one limit of wrong keys.
        """
        forwarded = ", ".join(headers.getlist("x-forwarded-for"))
        # If the proxy is trusted, the address already comes from the header.
        if not forwarded or address in forwarded or self._warned_of_proxies:
            return
        self._warned_of_proxies = True
        logger.warning(
            "X-Forwarded-For is ignored because BATCHWRIGHT_TRUSTED_PROXIES does not list its sender; "
            "wrong keys of all its clients count as one address's",
            extra={"address": address},
        )


class TrustedHeaderAuthenticator:
    """Trusts the tenant and the scopes in the headers of a gateway, and rejects disabled tenants.

    If no header for scopes is configured, callers may read and write, but not use admin routes.
    """

    def __init__(
        self, tenants: TenantsTable, settings: Settings, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._tenants = tenants
        self._settings = settings
        self._monotonic = monotonic
        self._enabled: OrderedDict[str, float] = OrderedDict()  # by tenant: when it was last found enabled

    async def authenticate(self, scope: Scope) -> str:
        headers = Headers(scope=scope)
        tenant = tenant_from_headers(headers, self._settings)
        add_fields(tenant=tenant)
        if not await self._is_enabled(tenant):
            raise AccessDenied("tenant", 403, f"The tenant '{tenant}' is disabled.", code="tenant_disabled")
        scope[SCOPE_TENANT] = tenant
        name = self._settings.scopes_header
        if name:
            _check_scope(scopes_from_headers(headers, name), scope, f"The header {name}")
        else:
            _check_scope(_DEFAULT_SCOPES, scope, "A caller without a header of scopes")
        return tenant

    async def _is_enabled(self, tenant: str) -> bool:
        """Return True unless the tenant is disabled. A tenant without a row is enabled."""
        now = self._monotonic()
        if now - self._enabled.get(tenant, -CACHE_SECONDS) < CACHE_SECONDS:
            return True
        row = await self._tenants.get(tenant)
        if row is not None and row.disabled_at is not None:
            return False
        self._enabled[tenant] = now
        self._enabled.move_to_end(tenant)
        if len(self._enabled) > _MAX_TENANTS:
            self._enabled.popitem(last=False)
        return True


def has_key_header(headers: Headers) -> bool:
    """Return True if the request has a header for an API key, even an empty one."""
    return "authorization" in headers or AZURE_KEY_HEADER in headers


def _key_from_headers(headers: Headers) -> ApiKey | None:
    """Return the API key in the headers.

    Return None if no header contains a text in the form of a key, or if two headers contain different keys.

    Raises:
        AccessDenied: the request has no header for a key.
    """
    if not has_key_header(headers):
        message = (
            "You didn't provide an API key. Send it in the header Authorization, as `Bearer YOUR_KEY`, or in "
            f"the header {AZURE_KEY_HEADER}, or give it to your client as its API key."
        )
        raise AccessDenied("no_key", 401, message, code="invalid_api_key", headers=_CHALLENGE)
    bearers = [_BEARER.fullmatch(value) for value in headers.getlist("authorization")]
    texts = [*(found[1] for found in bearers if found), *headers.getlist(AZURE_KEY_HEADER)]
    keys = {key for key in map(parse_key, texts) if key is not None}
    return keys.pop() if len(keys) == 1 else None


def _invalid_key() -> AccessDenied:
    """Return the error for an invalid key. It is always the same, to reveal nothing about other keys."""
    message = "Incorrect API key provided. `batchwright keys` creates keys."
    return AccessDenied("wrong_key", 401, message, code="invalid_api_key", headers=_CHALLENGE)


def _check_scope(scopes: Collection[str], scope: Scope, what: str) -> None:
    required = required_scope(scope["method"], scope["path"])
    if not is_granted(required, scopes):
        message = f"{what} lacks the scope '{required}', which {scope['method']} on this path needs."
        raise AccessDenied("scope", 403, message, code="missing_scope")
