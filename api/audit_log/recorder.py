"""Records actions in the audit log. An action is an operation that changes or destroys something.

Each route that performs an action declares it. The action is recorded before the route's function is called,
and its outcome before the response is sent. If the action cannot be recorded, the function is not called.
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
from batchwright.api.dependencies import ApiDependencies
from batchwright.api.errors import ApiError, rate_limited
from batchwright.contracts.api_objects.audit_log import AuditAction, AuditOutcome
from batchwright.contracts.calls import CallStatus
from batchwright.contracts.model_registry.backend_config import HEADER_SETTINGS
from batchwright.database.errors import UnknownBatch
from batchwright.database.recorded_action import recorded
from batchwright.database.tables.operations.audit_log import AuditActor, AuditEntry, AuditResult, AuditTarget
from batchwright.rules.batch_states import LIVE_STATES
from batchwright.rules.json_text import storable
from batchwright.rules.pagination import BadParameter
from batchwright.rules.tenants.attempt_limiter import AttemptLimiter
from batchwright.telemetry.context import current_fields
from batchwright.telemetry.redaction import REDACTED, redactor_for

# A tenant may repeat actions that leave their target in existence, and each leaves rows in the audit log.
REPEATABLE_PER_MINUTE = 60
# An object is created once and deleted once, but a tenant can do both with one object after another.
ONE_TIME_PER_MINUTE = 600
_MAX_ID_CHARACTERS = 256
Applies = Callable[[State], bool]


class AuditLog:
    """A recorder of actions in the audit log: who changed or destroyed what.

    The methods `of_...` return FastAPI dependencies. A route declares its action with one of these
    dependencies.
    """

    def __init__(self, deps: ApiDependencies) -> None:
        self._deps, self._table = deps, deps.database.audit_log
        self._redactor = redactor_for(deps.settings)
        self.repeated = AttemptLimiter(REPEATABLE_PER_MINUTE)
        self.one_time = AttemptLimiter(ONE_TIME_PER_MINUTE)

    def of_operator(self, action: AuditAction, target: type[TargetKind]) -> list[DependsOn]:
        """Return the FastAPI dependencies that a route of operators needs to record its requests in the audit
        log.

        A request that the API refuses is recorded, too.

        Args:
            action: name under which the requests are recorded.
            target: finds and reads the object that a request changes.
        """
        return [Depends(OperatorAction(self, action, target(self._deps)), scope="function")]

    def of_tenant(
        self, action: AuditAction, target: type[TargetKind], ends: Applies | None = None
    ) -> list[DependsOn]:
        """Return the FastAPI dependencies for a route that changes or ends an object of a tenant, such as a
        batch. If the object exists, the dependencies record the request in the audit log.

        Two limits prevent a tenant from filling the log. A request beyond a limit gets a 429:

        - 60 requests per minute for actions that can be repeated, such as a pause. Refused requests count,
          too.
        - 600 requests per minute for actions that end an object, such as a deletion. This limit is higher,
          because each object can be ended only once.

        Args:
            action: name under which the requests are recorded.
            target: finds and reads the object that a request changes.
            ends: None if the action can be repeated. If the action ends the object, pass a function that gets
                the object's state, and returns False if the object has already ended. If the function returns
                False, the request is not recorded.
        """
        return [Depends(TenantAction(self, action, target(self._deps), ends), scope="function")]

    def of_creation(self, action: AuditAction, target: type[TargetKind]) -> list[DependsOn]:
        """Return the FastAPI dependencies for a route with which tenants create an object, such as a
        schedule. The dependencies record each request in the audit log.

        A tenant may send 600 such requests per minute. Further requests get a 429.

        Args:
            action: name under which the requests are recorded.
            target: kind of the new object. The audit log needs the object's id before the object exists. So
                the method `find` of the target kind must create the id, and the route's function must use the
                created id. `NewScheduleTarget` is an example.
        """
        return [Depends(CreationAction(self, action, target(self._deps), None), scope="function")]

    @asynccontextmanager
    async def recording(
        self, request: Request, declared: "OperatorAction", target: AuditTarget, before: State | None
    ) -> AsyncGenerator[None]:
        """Context manager that records an action before the `with` block, and its outcome after the block.

        Args:
            declared: the action that the route declares.
            target: the object that the action changes.
            before: state of this object before the action; None if the object does not exist.

        Raises:
            DatabaseUnavailable: the action could not be recorded. The `with` block does not run.
        """

        async def read_after() -> JsonValue:
            return self._redacted(await declared.target.read(target))

        entry = self._entry(request, declared, target, self._redacted(before))
        async with recorded(self._table, entry, read_after, _refusal_code):
            yield

    async def record_denial(self, scope: Scope, declared: "OperatorAction", code: str) -> None:
        """Record that a known caller was denied an action. At most 60 denials per minute are recorded for
        each tenant; the others are dropped.

        Args:
            scope: the request's ASGI scope, including the path parameters of its route.
            declared: the action that the route declares.
            code: error code of the response.

        Raises:
            DatabaseUnavailable: the denial could not be recorded.
        """
        tenant: str = scope[SCOPE_TENANT]
        if self.repeated.wait_seconds(tenant):
            return
        self.repeated.acquire(tenant)
        request = Request(scope)
        id = storable("/".join(map(str, request.path_params.values())))[:_MAX_ID_CHARACTERS]
        entry = self._entry(request, declared, AuditTarget(type=declared.target.type, id=id), None)
        entry_id = await self._table.begin(entry)
        await self._table.finish(entry_id, AuditResult(outcome=AuditOutcome.REFUSED, code=code))

    def _entry(
        self, request: Request, declared: "OperatorAction", target: AuditTarget, before: JsonValue
    ) -> AuditEntry:
        actor = AuditActor(
            source="api",
            tenant=request.scope.get(SCOPE_TENANT)
            or (target.tenant if isinstance(declared, TenantAction) else ""),
            key_id=key_id_of(request),
            user=user_of(request),
            address=request.client.host if request.client else "",
            request_id=str(current_fields().get("request_id", "")),
        )
        return AuditEntry(
            created_at=self._deps.clock(),
            actor=actor,
            action=declared.action,
            target=target,
            before=before,
        )

    def _redacted(self, state: State | None) -> JsonValue:
        """Return the state of an object without secrets: header values, and text that looks like a secret,
        are redacted.
        """
        return cast("JsonValue", self._redactor.value(_without_headers(state)))


class OperatorAction:
    """A FastAPI dependency that records each request to a route of operators in the audit log."""

    def __init__(self, log: AuditLog, action: AuditAction, target: TargetKind) -> None:
        self._log = log
        self.action, self.target = action, target

    async def __call__(self, request: Request) -> AsyncGenerator[None]:
        target = await self.target.find(request)
        async with self._log.recording(request, self, target, await self.target.read(target)):
            yield


class TenantAction(OperatorAction):
    """A FastAPI dependency that records requests of tenants that change or end an existing object.

    A request is not recorded if the object does not exist, or if the request would end an object that has
    already ended.
    """

    def __init__(self, log: AuditLog, action: AuditAction, target: TargetKind, ends: Applies | None) -> None:
        super().__init__(log, action, target)
        self._ends = ends

    async def __call__(self, request: Request) -> AsyncGenerator[None]:
        target = await self.target.find(request)
        before = await self.target.read(target)
        if before is None or (self._ends is not None and not self._ends(before)):
            yield
            return
        if self._ends is not None:
            self._limit(self._log.one_time, ONE_TIME_PER_MINUTE, target.tenant)
        which = " that were refused or that can be repeated"
        self._limit(self._log.repeated, REPEATABLE_PER_MINUTE, target.tenant, which)
        async with self._log.recording(request, self, target, before):
            yield
        if self._ends is not None:  # an action that ended its target cannot be repeated
            self._log.repeated.release(target.tenant)

    def _limit(self, limiter: AttemptLimiter, limit: int, tenant: str, which: str = "") -> None:
        """Count the request. If the tenant has reached the limit, reject the request instead.

        The request is counted before it is executed, so that concurrent requests count, too.

        Args:
            limiter: counter of the requests of each tenant.
            limit: number of requests per minute, for the error message.
            which: words that say in the error message which requests count, such as
                " that were refused or that can be repeated"; empty if all requests count.

        Raises:
            ApiError: the tenant has sent more than `limit` requests in a minute (429).
        """
        if seconds := limiter.wait_seconds(tenant):
            message = (
                f"Too many requests for '{self.action}'{which}: at most {limit} such requests per minute are "
                f"allowed. Try again in {seconds} s."
            )
            raise rate_limited(message, limit, seconds=seconds, window=60)
        limiter.acquire(tenant)


class CreationAction(TenantAction):
    """A FastAPI dependency that records each request with which a tenant creates an object."""

    async def __call__(self, request: Request) -> AsyncGenerator[None]:
        target = await self.target.find(request)
        self._limit(self._log.one_time, ONE_TIME_PER_MINUTE, target.tenant)
        async with self._log.recording(request, self, target, None):
            yield


def in_any_state(state: State) -> bool:
    """Return True for every state of an object.

    Pass this function to `AuditLog.of_tenant` as `ends` for an action that can end an object in any state.
    For example, a disabled webhook can be deleted.
    """
    return True


def is_live(batch: State) -> bool:
    """Return True if the batch has not ended.

    Pass this function to `AuditLog.of_tenant` as `ends` for the route that cancels a batch.
    """
    return batch["status"] in LIVE_STATES


def has_not_ended(call: State) -> bool:
    """Return True if a call (a single request that a client sends without a batch) has not ended.

    Pass this function to `AuditLog.of_tenant` as `ends` for the route that cancels a call.
    """
    return call["status"] in (CallStatus.QUEUED, CallStatus.IN_PROGRESS)


def action_of(route: APIRoute) -> OperatorAction | None:
    """Return the action that a route declares for the audit log; None if it declares none."""
    actions = (each.dependency for each in route.dependencies)
    return next((declared for declared in actions if isinstance(declared, OperatorAction)), None)


def _refusal_code(error: Exception) -> str | None:
    """Return the error code if the API refused the request; None if the request failed for another reason."""
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
        if name in HEADER_SETTINGS and isinstance(item, dict)
        else _without_headers(item)
        for name, item in value.items()
    }
