"""Records acts in the audit log. Each route that changes or destroys something declares its act.

An act is recorded before the route's function is called, and its outcome before the response is sent. If the
beginning cannot be recorded, the function is not called.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import cast

from fastapi import Depends, Request
from fastapi.exceptions import RequestValidationError
from fastapi.params import Depends as DependsOn
from fastapi.routing import APIRoute
from pydantic import JsonValue
from starlette.types import Scope

from batchwright.api.audit_log.targets import State, TargetKind
from batchwright.api.auth.caller import SCOPE_TENANT, key_id_of, user_of
from batchwright.api.auth.failure_limiter import FailureLimiter
from batchwright.api.dependencies import ApiDependencies
from batchwright.api.errors import ApiError, rate_limited
from batchwright.contracts.audit_log import AuditAction, AuditOutcome
from batchwright.database.errors import UnknownBatch
from batchwright.database.recorded_act import recorded
from batchwright.database.tables.audit_log import AuditActor, AuditEntry, AuditResult, AuditTarget
from batchwright.rules.batch_states import LIVE_STATES
from batchwright.rules.ids import new_audit_entry_id
from batchwright.rules.json_text import storable
from batchwright.rules.pagination import BadParameter
from batchwright.telemetry.context import current_fields
from batchwright.telemetry.redaction import REDACTED, redactor_for

# A tenant may repeat acts that leave their target in existence, and each leaves rows in the audit log.
REPEATABLE_PER_MINUTE = 60
_MAX_ID_CHARACTERS = 256
Applies = Callable[[State], bool]


class AuditLog:
    """Records the acts of requests, and makes the dependencies with which routes declare their acts."""

    def __init__(self, deps: ApiDependencies) -> None:
        self._deps, self._table = deps, deps.database.audit_log
        self._redactor = redactor_for(deps.settings)
        self.repeated = FailureLimiter(REPEATABLE_PER_MINUTE)

    def of_operator(self, action: AuditAction, target: type[TargetKind]) -> list[DependsOn]:
        """Return the dependencies of a route for operators. Each request is recorded, also a refused one."""
        return [Depends(OperatorAct(self, action, target(self._deps)), scope="function")]

    def of_tenant(
        self, action: AuditAction, target: type[TargetKind], ends: Applies | None = None
    ) -> list[DependsOn]:
        """Return the dependencies of a route for tenants. A request is recorded if its target exists.

        A tenant gets 429 after 60 requests per minute that leave their target in existence, so that it cannot
        fill the audit log. Other requests are as many as the objects that it creates.

        Args:
            ends: for an act that ends its target: returns False for a target that the act can no longer
                change. Such requests are not recorded. None for an act that can be repeated.
        """
        return [Depends(TenantAct(self, action, target(self._deps), ends), scope="function")]

    @asynccontextmanager
    async def recording(
        self, request: Request, act: "OperatorAct", target: AuditTarget, before: State | None
    ) -> AsyncGenerator[None]:
        """Context manager that records the act of a request, and its outcome.

        Raises:
            DatabaseUnavailable: the act could not be recorded, and must not happen.
        """

        async def read_after() -> JsonValue:
            return self._redacted(await act.target.read(target))

        entry = self._entry(request, act, target, self._redacted(before))
        async with recorded(self._table, entry, read_after, _refusal_code):
            yield

    async def record_denial(self, scope: Scope, act: "OperatorAct", code: str) -> None:
        """Record that an operator's act was denied to a known caller: 60 per minute for each tenant.

        Args:
            scope: the request's ASGI scope, with the parameters of the path of its route.

        Raises:
            DatabaseUnavailable: the denied act could not be recorded.
        """
        tenant: str = scope[SCOPE_TENANT]
        if self.repeated.wait_seconds(tenant):
            return
        self.repeated.acquire(tenant)
        request = Request(scope)
        id = storable("/".join(map(str, request.path_params.values())))[:_MAX_ID_CHARACTERS]
        entry = self._entry(request, act, AuditTarget(type=act.target.type, id=id), None)
        await self._table.begin(entry)
        await self._table.finish(entry.id, AuditResult(outcome=AuditOutcome.REFUSED, code=code))

    def _entry(
        self, request: Request, act: "OperatorAct", target: AuditTarget, before: JsonValue
    ) -> AuditEntry:
        actor = AuditActor(
            source="api",
            tenant=request.scope.get(SCOPE_TENANT) or (target.tenant if isinstance(act, TenantAct) else ""),
            key_id=key_id_of(request),
            user=user_of(request),
            address=request.client.host if request.client else "",
            request_id=str(current_fields().get("request_id", "")),
        )
        return AuditEntry(
            id=new_audit_entry_id(),
            created_at=self._deps.clock(),
            actor=actor,
            action=act.action,
            target=target,
            before=before,
        )

    def _redacted(self, state: State | None) -> JsonValue:
        """Return the state without secrets: values of headers, and all that looks like a secret."""
        return cast("JsonValue", self._redactor.value(_without_headers(state)))


class OperatorAct:
    """Dependency of a route for operators that records the act of each request."""

    def __init__(self, log: AuditLog, action: AuditAction, target: TargetKind) -> None:
        self._log = log
        self.action, self.target = action, target

    async def __call__(self, request: Request) -> AsyncGenerator[None]:
        target = await self.target.find(request)
        async with self._log.recording(request, self, target, await self.target.read(target)):
            yield


class TenantAct(OperatorAct):
    """Dependency of a route for tenants that records the act of each request whose target exists."""

    def __init__(self, log: AuditLog, action: AuditAction, target: TargetKind, ends: Applies | None) -> None:
        super().__init__(log, action, target)
        self._ends = ends

    async def __call__(self, request: Request) -> AsyncGenerator[None]:
        target = await self.target.find(request)
        before = await self.target.read(target)
        if before is None or (self._ends is not None and not self._ends(before)):
            yield
            return
        if seconds := self._log.repeated.wait_seconds(target.tenant):
            message = (
                f"Too many requests for '{self.action}' that were refused or that can be repeated: at most "
                f"{REPEATABLE_PER_MINUTE} per minute are allowed. Try again in {seconds} s."
            )
            raise rate_limited(message, REPEATABLE_PER_MINUTE, seconds=seconds, window=60)
        self._log.repeated.acquire(target.tenant)  # before the act, so that concurrent requests count
        async with self._log.recording(request, self, target, before):
            yield
        if self._ends is not None:  # an act that ended its target cannot be repeated
            self._log.repeated.release(target.tenant)


def exists(state: State) -> bool:
    """Return True: for an act that ends its target in whatever state it is."""
    return True


def is_live(batch: State) -> bool:
    """Return True if a batch has not ended, so that a cancel ends it."""
    return batch["status"] in LIVE_STATES


def act_of(route: APIRoute) -> OperatorAct | None:
    """Return the act that a route declares; None if it declares none."""
    acts = (each.dependency for each in route.dependencies)
    return next((act for act in acts if isinstance(act, OperatorAct)), None)


def _refusal_code(error: Exception) -> str | None:
    """Return the code of an error that refused the act; None if the act failed."""
    match error:
        case ApiError() if error.status < 500:
            return error.code or str(error.status)
        case BadParameter():
            return error.code
        case UnknownBatch():
            return "404"
        case RequestValidationError():
            return "400"
        case _:
            return None


def _without_headers(value: JsonValue | State) -> JsonValue:
    if isinstance(value, list):
        return [_without_headers(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        name: dict.fromkeys(item, REDACTED)
        if name == "headers" and isinstance(item, dict)
        else _without_headers(item)
        for name, item in value.items()
    }
