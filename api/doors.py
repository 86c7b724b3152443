"""Who is let in: callers with a key, or those whom a trusted gateway has let in."""

import re
import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import Protocol

from starlette.datastructures import Headers
from starlette.types import Scope

from api.attempts import Attempts
from api.errors import ApiError
from api.key_uses import KeyUses
from api.keyring import FRESH_SECONDS, Keyring
from api.services import Services
from api.tenants import KEY, named_scopes, named_tenant
from batchwright.database.tenant_rows import KeyRow
from batchwright.database.tenants_base import TenantsTable
from batchwright.rules.api_keys import needed, parse
from batchwright.settings import Settings
from batchwright.telemetry.context import learn

_BEARER = re.compile(r"bearer +([\x21-\x7e]+)", re.IGNORECASE)
_CHALLENGE = {"WWW-Authenticate": "Bearer"}
_MOST_TENANTS = 10_000


class Refusal(ApiError):
    """`reason` is for metrics and the log."""

    def __init__(
        self, reason: str, status: int, message: str, *, code: str, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(status, message, code=code, headers=headers)
        self.reason = reason


class Door(Protocol):
    async def admit(self, scope: Scope) -> str:
        """The tenant for whom the request is. Raises ApiError, DatabaseUnavailable."""
        ...


def door_of(services: Services) -> Door | None:
    """As the settings want it; None: all may enter."""
    match services.settings.auth:
        case "api_key":
            return KeyDoor(services)
        case "trusted_header":
            return GatewayDoor(services.database.tenants, services.settings)
        case _:
            return None


class KeyDoor:
    """Opens to keys, as far as their scopes go."""

    def __init__(self, services: Services, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._settings = services.settings
        self._clock = services.clock
        self._keyring = Keyring(services.database.api_keys, services.clock, monotonic)
        self._attempts = Attempts(services.settings.auth_failures_per_minute, monotonic)
        self.uses = KeyUses(services.database.api_keys)

    async def admit(self, scope: Scope) -> str:
        headers = Headers(scope=scope)
        row = await self._row_of(_sent_key(headers), _address(scope))
        learn(tenant=row.tenant, key_id=row.id)
        self.uses.note(row, self._clock())
        self._check_tenant(row, headers)
        _check_scope(row.scopes, scope, "This API key")
        scope[KEY] = row.id
        return row.tenant

    async def _row_of(self, text: str, address: str) -> KeyRow:
        key = parse(text)
        wait = self._attempts.wait_seconds(address)
        # Whose key was good before is not shut out by what else comes from its address.
        if wait and (key is None or not self._keyring.has_proven(key)):
            raise _too_many_attempts(wait)
        row = None if key is None else await self._keyring.row_of(key)
        if row is None:
            self._attempts.failed(address)
            raise _wrong_key()
        return row

    def _check_tenant(self, row: KeyRow, headers: Headers) -> None:
        name = self._settings.tenant_header
        if name in headers and named_tenant(headers, self._settings) != row.tenant:
            message = f"The API key is of another tenant than the header {name} names; leave the header out."
            raise Refusal("tenant", 403, message, code="tenant_mismatch")


class GatewayDoor:
    """Believes the header; a tenant that an operator has disabled stays outside."""

    def __init__(
        self, tenants: TenantsTable, settings: Settings, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._tenants = tenants
        self._settings = settings
        self._monotonic = monotonic
        self._enabled: OrderedDict[str, float] = OrderedDict()  # when each was found so

    async def admit(self, scope: Scope) -> str:
        headers = Headers(scope=scope)
        tenant = named_tenant(headers, self._settings)
        learn(tenant=tenant)
        if not await self._is_enabled(tenant):
            raise Refusal("tenant", 403, f"The tenant '{tenant}' is disabled.", code="tenant_disabled")
        name = self._settings.scopes_header
        if name:
            _check_scope(named_scopes(headers, name), scope, f"The header {name}")
        return tenant

    async def _is_enabled(self, tenant: str) -> bool:
        """One that has no row is."""
        now = self._monotonic()
        if now - self._enabled.get(tenant, -FRESH_SECONDS) < FRESH_SECONDS:
            return True
        row = await self._tenants.get(tenant)
        if row is not None and row.disabled_at is not None:
            return False
        self._enabled[tenant] = now
        self._enabled.move_to_end(tenant)
        if len(self._enabled) > _MOST_TENANTS:
            self._enabled.popitem(last=False)
        return True


def _sent_key(headers: Headers) -> str:
    sent = headers.getlist("authorization")
    if not sent:
        message = (
            "You didn't provide an API key. Send it in the header Authorization, as `Bearer YOUR_KEY`, or "
            "give it to your client as its API key."
        )
        raise Refusal("no_key", 401, message, code="invalid_api_key", headers=_CHALLENGE)
    found = _BEARER.fullmatch(sent[0]) if len(sent) == 1 else None
    return found[1] if found else ""


def _wrong_key() -> Refusal:
    """The same for every key that opens nothing: who guesses learns nothing of the keys there are."""
    message = "Incorrect API key provided. `batchwright keys` makes keys."
    return Refusal("wrong_key", 401, message, code="invalid_api_key", headers=_CHALLENGE)


def _too_many_attempts(seconds: int) -> Refusal:
    message = f"Too many wrong API keys came from your address. Try again in {seconds} s."
    headers = {"Retry-After": str(seconds)}
    return Refusal("attempts", 429, message, code="rate_limit_exceeded", headers=headers)


def _check_scope(scopes: Collection[str], scope: Scope, what: str) -> None:
    wanted = needed(scope["method"], scope["path"])
    if wanted not in scopes:
        message = f"{what} lacks the scope '{wanted}', which {scope['method']} on this path needs."
        raise Refusal("scope", 403, message, code="missing_scope")


def _address(scope: Scope) -> str:
    client: tuple[str, int] | None = scope.get("client")
    return client[0] if client else ""
