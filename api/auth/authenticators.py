"""Authenticators identify a caller by its API key, its token, or the headers of a gateway."""

import logging
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import Protocol

from starlette.datastructures import Headers
from starlette.types import Scope

from batchwright.api.auth.caller import (
    SCOPE_KEY_ID,
    SCOPE_SESSION_KEY,
    SCOPE_TENANT,
    SCOPE_USER,
    SessionKey,
    scopes_from_headers,
    tenant_from_headers,
)
from batchwright.api.auth.key_cache import CACHE_SECONDS, KeyCache, KeyUsageRecorder
from batchwright.api.dependencies import ApiDependencies
from batchwright.api.errors import ApiError
from batchwright.database.errors import DatabaseUnavailable
from batchwright.database.records import ApiKeyRow
from batchwright.database.tables.tenants.tenants import TenantsTable
from batchwright.oidc.issuer import IssuerUnavailable
from batchwright.oidc.tokens import InvalidToken, TokenIdentity, TokenVerifier, UnusableClaim
from batchwright.rules.tenants.api_keys import ApiKey, parse_key
from batchwright.rules.tenants.attempt_limiter import AttemptLimiter
from batchwright.rules.tenants.scopes import Scope as ApiScope
from batchwright.rules.tenants.scopes import is_granted, required_scope
from batchwright.settings import Settings
from batchwright.telemetry.context import add_fields

AZURE_KEY_HEADER = "api-key"  # sent by clients of Azure OpenAI instead of Authorization
ANTHROPIC_KEY_HEADER = "x-api-key"  # sent by Anthropic's clients instead of Authorization
_KEY_HEADERS = (AZURE_KEY_HEADER, ANTHROPIC_KEY_HEADER)
_BEARER = re.compile(r"bearer +([\x21-\x7e]+)", re.IGNORECASE)
logger = logging.getLogger(__name__)

_CHALLENGE = {"WWW-Authenticate": "Bearer"}
_TOKEN_CHALLENGE = {"WWW-Authenticate": 'Bearer error="invalid_token"'}
_MAX_TENANTS = 10_000
DEFAULT_SCOPES = frozenset({ApiScope.READ, ApiScope.WRITE})  # scopes of callers if the gateway sends none


class AccessDenied(ApiError):
    """An error response for a caller without access. `reason` is a short word that metrics and logs show."""

    def __init__(
        self, reason: str, status: int, message: str, *, code: str, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(status, message, code=code, headers=headers)
        self.reason = reason


class Authenticator(Protocol):
    async def authenticate(self, scope: Scope) -> None:
        """Check who sent the request, and store the caller's tenant in the ASGI scope.

        The tenant is stored as soon as the caller is known. So the scope contains the tenant even if a later
        check fails, such as the check whether the caller may use this route.

        Raises:
            ApiError: the caller has no access, or a header is not valid.
            DatabaseUnavailable: the database does not respond, so access cannot be checked.
            IssuerUnavailable: the keys that verify tokens cannot be fetched, so access cannot be checked.
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
    """An authenticator that accepts a request if its API key or token is valid and has the right to use the
    route.

    Tokens are accepted only if an issuer of tokens is configured. Requests of the pages at `/ui` contain no
    key. A middleware adds the visitor's session to these requests. The key of the session is then checked.
    """

    def __init__(self, deps: ApiDependencies, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._settings = deps.settings
        self._clock = deps.clock
        self._keys = KeyCache(deps.database.api_keys, deps.clock, monotonic)
        self._failures = AttemptLimiter(deps.settings.auth_failures_per_minute, monotonic)
        self._tokens: TokenVerifier | None = None
        if deps.issuer_keys is not None:
            self._tokens = TokenVerifier(deps.settings, deps.issuer_keys, deps.clock)
        self._tenants = _EnabledTenants(deps.database.tenants, monotonic, must_exist=True)
        self._warned_of_proxies = False
        self._usage = KeyUsageRecorder(deps.database.api_keys)

    async def authenticate(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        client: tuple[str, int] | None = scope.get("client")
        address = client[0] if client else ""
        self._warn_of_proxies(headers, address)
        session: SessionKey | None = scope.get(SCOPE_SESSION_KEY)
        credential = _credential_from_headers(headers) if session is None else await _key_of(session)
        if self._tokens is not None and isinstance(credential, str):
            identity = await self._identity_of(self._tokens, credential, address)
            add_fields(tenant=identity.tenant, user=identity.user)
            await self._tenants.check(identity.tenant)
            scope[SCOPE_TENANT], scope[SCOPE_USER] = identity.tenant, identity.user
            return self._check_request(scope, identity.tenant, identity.scopes, "token")
        row = credential if isinstance(credential, ApiKeyRow) else await self.row_of(credential, address)
        add_fields(tenant=row.tenant, key_id=row.id)
        self._usage.record(row, self._clock())
        scope[SCOPE_TENANT], scope[SCOPE_KEY_ID] = row.tenant, row.id
        self._check_request(scope, row.tenant, row.scopes, "API key")

    def _check_request(self, scope: Scope, tenant: str, scopes: Collection[str], credential: str) -> None:
        """Check that the caller's scopes allow the route. If the request has a tenant header, also check that
        the header names `tenant`.

        Args:
            scope: the request's ASGI scope.
            tenant: tenant of the caller's key or token.
            scopes: rights of the caller, such as `read`.
            credential: what the caller has sent, for error messages: "token" or "API key".

        Raises:
            AccessDenied: the header names another tenant, or the scopes do not allow the route.
        """
        headers, name = Headers(scope=scope), self._settings.tenant_header
        if name in headers and tenant_from_headers(headers, self._settings) != tenant:
            message = (
                f"The {credential} belongs to another tenant than the header {name} names; leave the header "
                "out."
            )
            raise AccessDenied("tenant", 403, message, code="tenant_mismatch")
        _check_scope(scopes, scope, f"This {credential}")

    async def row_of(self, key: ApiKey | str | None, address: str) -> ApiKeyRow:
        """Return the database row of the API key that a client has sent, if the key is valid.

        Args:
            key: the key that the client sent. Text that does not have the form of a key, or None, is
                rejected.
            address: address of the client. The number of wrong keys per address is limited.

        Raises:
            AccessDenied: the key is not valid, or the client's address has sent too many wrong keys.
        """
        if not isinstance(key, ApiKey):
            raise _invalid_key()
        # Wrong keys from the same address do not lock out a key that was valid before.
        row = await (self._keys.verify(key) if self._keys.is_cached(key) else self._verify_new(key, address))
        if row is None:
            raise _invalid_key()
        return row

    async def _verify_new(self, key: ApiKey, address: str) -> ApiKeyRow | None:
        """Check a key that is not in the cache. Return its database row; None if the key is not valid.

        Raises:
            AccessDenied: the address has sent too many wrong keys.
        """
        self._begin_attempt(address, "API keys")
        try:
            row = await self._keys.verify(key)
        except DatabaseUnavailable:
            self._failures.release(address)
            raise
        if row is not None:
            self._failures.release(address)
        return row

    async def _identity_of(self, tokens: TokenVerifier, token: str, address: str) -> TokenIdentity:
        """Check a token. Return the tenant, the user and the scopes that the token contains.

        A token in the cache of valid tokens is accepted even if the client's address has sent too many wrong
        tokens.

        Raises:
            AccessDenied: the token is not valid, or the client's address has sent too many wrong tokens.
        """
        if identity := tokens.recall(token):
            return identity
        if token.count(".") != 2:  # perhaps an incomplete key, and no work for the verifier
            raise _invalid_key()
        self._begin_attempt(address, "tokens")
        try:
            identity = await tokens.verify(token)
        except IssuerUnavailable:
            self._failures.release(address)
            raise
        except InvalidToken as error:
            reason = "expired_token" if error.is_expired else "wrong_token"
            raise AccessDenied(
                reason, 401, str(error), code="invalid_token", headers=_TOKEN_CHALLENGE
            ) from None
        except UnusableClaim as error:
            raise AccessDenied("claim", 403, str(error), code="unusable_claim") from None
        self._failures.release(address)
        return identity

    def _begin_attempt(self, address: str, credentials: str) -> None:
        """Count an attempt of a client's address. Call this before the key or token is checked.

        If the check succeeds, or if the check is impossible now, call `self._failures.release` after the
        check. So only failed attempts and attempts in progress count.

        Args:
            credentials: "API keys" or "tokens", for the error message.

        Raises:
            AccessDenied: the address has too many failed attempts.
        """
        if seconds := self._failures.wait_seconds(address):
            message = f"Too many wrong {credentials} came from your address. Try again in {seconds} s."
            headers = {"Retry-After": str(seconds)}
            raise AccessDenied("attempts", 429, message, code="rate_limit_exceeded", headers=headers)
        self._failures.acquire(address)

    def _warn_of_proxies(self, headers: Headers, address: str) -> None:
        """Log a warning if an untrusted proxy sends X-Forwarded-For. The warning is logged once per process.

        All clients behind such a proxy have the same address for the API, so they share one limit of wrong
        keys.
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
    """An authenticator that trusts the headers in which a gateway states the caller's tenant and scopes
    (rights). It rejects disabled tenants.

    If the settings name no header for scopes, callers may read and write, but may not use admin routes.
    """

    def __init__(
        self, tenants: TenantsTable, settings: Settings, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._tenants = _EnabledTenants(tenants, monotonic, must_exist=False)
        self._settings = settings

    async def authenticate(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        tenant = tenant_from_headers(headers, self._settings)
        add_fields(tenant=tenant)
        await self._tenants.check(tenant)
        scope[SCOPE_TENANT] = tenant
        name = self._settings.scopes_header
        if name:
            _check_scope(scopes_from_headers(headers, name), scope, f"The header {name}")
        else:
            _check_scope(DEFAULT_SCOPES, scope, "A caller without a header of scopes")


class _EnabledTenants:
    """A check that tenants are enabled. It caches each enabled tenant for `CACHE_SECONDS`.

    If `must_exist` is True, a tenant without a database row is denied, too.
    """

    def __init__(self, tenants: TenantsTable, monotonic: Callable[[], float], *, must_exist: bool) -> None:
        self._tenants = tenants
        self._monotonic = monotonic
        self._must_exist = must_exist
        self._enabled: OrderedDict[str, float] = OrderedDict()  # by tenant: when it was last found enabled

    async def check(self, tenant: str) -> None:
        """Check that the tenant is enabled.

        Raises:
            AccessDenied: the tenant is disabled. Or `must_exist` is True and the tenant has no database row.
        """
        now = self._monotonic()
        if now - self._enabled.get(tenant, -CACHE_SECONDS) < CACHE_SECONDS:
            return
        row = await self._tenants.get(tenant)
        if row is None and self._must_exist:
            message = f"The tenant '{tenant}' does not exist. `batchwright tenants create` creates tenants."
            raise AccessDenied("tenant", 403, message, code="tenant_unknown")
        if row is not None and row.disabled_at is not None:
            raise AccessDenied("tenant", 403, f"The tenant '{tenant}' is disabled.", code="tenant_disabled")
        self._enabled[tenant] = now
        self._enabled.move_to_end(tenant)
        if len(self._enabled) > _MAX_TENANTS:
            self._enabled.popitem(last=False)


async def _key_of(session: SessionKey) -> ApiKeyRow:
    row = await session()
    if row is None:
        raise AccessDenied("session", 401, "You are signed out. Sign in again.", code="signed_out")
    return row


def has_key_header(headers: Headers) -> bool:
    """Return True if the request has a header for an API key, even if the header is empty."""
    return "authorization" in headers or any(name in headers for name in _KEY_HEADERS)


def _credential_from_headers(headers: Headers) -> ApiKey | str | None:
    """Return the caller's API key or bearer token from the headers.

    - If the headers contain exactly one API key, return it as an `ApiKey`. Any other bearer token is ignored.
    - If they contain no API key but exactly one bearer token, return the token as text.
    - If they contain several different keys or tokens, or only invalid text, return None.

    Raises:
        AccessDenied: the request has no header for a key or token.
    """
    if not has_key_header(headers):
        message = (
            "You didn't provide an API key. Send it in the header Authorization, as `Bearer YOUR_KEY`, or in "
            f"{ANTHROPIC_KEY_HEADER} or {AZURE_KEY_HEADER}, or give it to your client as its API key."
        )
        raise AccessDenied("no_key", 401, message, code="invalid_api_key", headers=_CHALLENGE)
    found = [_BEARER.fullmatch(value) for value in headers.getlist("authorization")]
    bearers = {match[1] for match in found if match}
    texts = [*bearers, *(text for name in _KEY_HEADERS for text in headers.getlist(name))]
    keys = {key for key in map(parse_key, texts) if key is not None}
    if keys:
        return keys.pop() if len(keys) == 1 else None
    return bearers.pop() if len(bearers) == 1 else None


def _invalid_key() -> AccessDenied:
    """Return the error for an invalid key.

    The error does not depend on why the key is invalid, so it does not reveal which keys exist.
    """
    message = "Incorrect API key provided. `batchwright keys` creates keys."
    return AccessDenied("wrong_key", 401, message, code="invalid_api_key", headers=_CHALLENGE)


def _check_scope(scopes: Collection[str], scope: Scope, what: str) -> None:
    required = required_scope(scope["method"], scope["path"])
    if not is_granted(required, scopes):
        message = f"{what} lacks the scope '{required}', which {scope['method']} on this path needs."
        raise AccessDenied("scope", 403, message, code="missing_scope")
