"""/v1/responses: OpenAI's Responses API. The client retrieves a response later, or waits for it on an open
connection.
"""

from contextlib import AsyncExitStack
from functools import partial

from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel, ConfigDict, Field, JsonValue

from batchwright.api.audit_log.recorder import AuditLog, has_not_ended
from batchwright.api.audit_log.targets import CallTarget
from batchwright.api.auth.caller import caller_of, tenant_of
from batchwright.api.dependencies import ApiDependencies
from batchwright.api.errors import call_not_found, invalid_value
from batchwright.api.openapi import error_responses
from batchwright.api.routes.calls.call_body import (
    CallBodies,
    Fields,
    check_body,
    flag,
    model_of,
    sent_key,
    text,
)
from batchwright.api.routes.calls.flex import (
    FLEX,
    FlexCalls,
    disconnected_response,
    failure_response,
)
from batchwright.api.routes.calls.interactive_passthrough import InteractiveForwarder
from batchwright.api.routes.calls.response_format import echoed_fields, response_body
from batchwright.api.schemas.json_body import json_body_spec, process_body
from batchwright.api.services.calls.acceptance import HELD, CallRequest, Calls
from batchwright.api.services.idempotency import idempotency_key_parameter
from batchwright.contracts.api_objects.audit_log import AuditAction
from batchwright.contracts.api_objects.calls import ResponseObject
from batchwright.contracts.calls import Call
from batchwright.contracts.terms import Endpoint
from batchwright.rules.calls.call_lines import edit_body
from batchwright.rules.calls.call_results import success_of
from batchwright.rules.ids import is_call_id

_PREFIX = "resp_"
_NOT_SENT = ("background", "service_tier", "stream")  # fields that backends do not get


class _CreateResponseBody(BaseModel):
    """Schema of the body that creates a response. Only these fields are checked.

    All other fields are passed on to the backend unchanged.
    """

    model_config = ConfigDict(extra="allow")

    model: str = Field(min_length=1, max_length=256, description="a model that a backend serves")
    input: JsonValue = Field(None, description="the prompt")
    background: bool | None = Field(None, description="true, unless the service tier is `flex`")
    service_tier: str | None = Field(None, description="flex: the connection is held until the answer")


class ResponseRoutes:
    def __init__(
        self,
        deps: ApiDependencies,
        bodies: CallBodies,
        calls: Calls,
        flex: FlexCalls,
        interactive: InteractiveForwarder | None,
    ) -> None:
        """Create the routes. If `interactive` is None, only calls with `background: true` or with the service
        tier `flex` are accepted.
        """
        self._settings, self._bodies, self._calls, self._flex = deps.settings, bodies, calls, flex
        self._interactive = interactive
        self._audit_log = AuditLog(deps)

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/v1/responses", tags=["Single calls"])
        one, of_backends = "/{response_id}", () if self._interactive is None else (502, 504)
        router.add_api_route(
            "",
            self.create,
            methods=["POST"],
            response_model=ResponseObject,
            openapi_extra=json_body_spec(_CreateResponseBody),
            responses=error_responses(403, 404, 409, 429, *of_backends),
            dependencies=[Depends(idempotency_key_parameter)],
        )
        router.add_api_route(one, self.get, response_model=ResponseObject, responses=error_responses(404))
        router.add_api_route(
            f"{one}/cancel",
            self.cancel,
            methods=["POST"],
            response_model=ResponseObject,
            responses=error_responses(404),
            dependencies=self._audit_log.of_tenant(AuditAction.CALL_CANCEL, CallTarget, ends=has_not_ended),
        )
        return router

    async def create(self, request: Request) -> Response:
        """Create a response.

        With `background: true`, the API answers at once, and the client retrieves the response later.
        Otherwise the connection stays open until the response is complete.
        """
        tenant = tenant_of(request, self._settings)
        async with AsyncExitStack() as opened:
            fields = await opened.enter_async_context(self._bodies.read(request, tenant))
            if self._interactive is not None and not _may_wait(fields):
                return await self._interactive.answer(request, Endpoint.RESPONSES, fields, opened)
            return await self._create(request, tenant, fields)

    async def _create(self, request: Request, tenant: str, fields: Fields) -> Response:
        background = _is_background(fields)
        call = await process_body(request, partial(self._parse, fields))
        if not background:
            call = call._replace(window=HELD, notifies=False)
            ended = await self._flex.answer(request, call, fields)
            if ended is None:
                return disconnected_response()
            return failure_response(ended) if success_of(ended) is None else self._shown(ended)
        caller, key = caller_of(request, self._settings), await sent_key(request, fields)
        return self._shown(await self._calls.submit(call, tenant, caller, key))

    def _parse(self, fields: Fields) -> CallRequest:
        model, body = model_of(fields, self._settings), edit_body(fields, _NOT_SENT)
        echoed = echoed_fields(fields)
        check_body(Endpoint.RESPONSES, body)
        return CallRequest(_PREFIX, Endpoint.RESPONSES, model, body, echoed=echoed)

    async def get(self, request: Request, response_id: str) -> Response:
        """Retrieve a response."""
        tenant, id = tenant_of(request, self._settings), _checked(response_id)
        return self._shown(await self._calls.get(tenant, id))

    async def cancel(self, request: Request, response_id: str) -> Response:
        """Cancel a response that has not ended.

        If no worker has begun with the part of the batch that contains the request, the request is never
        sent. Otherwise the backend may still process it, and its answer is dropped.
        """
        tenant, id = tenant_of(request, self._settings), _checked(response_id)
        return self._shown(await self._calls.cancel(tenant, id))

    def _shown(self, call: Call) -> Response:
        return Response(response_body(call, self._settings.profile), media_type="application/json")


def _may_wait(fields: Fields) -> bool:
    return flag(fields, "background") or text(fields, "service_tier") == FLEX


def _is_background(fields: Fields) -> bool:
    """Return the field `background`: True if the client retrieves the response later, and False if the client
    waits on the open connection.

    Raises:
        ApiError: the request has neither `background: true` nor the service tier `flex`. The request has
            `stream: true`. Or it has `background: true` together with `store: false` (all 400).
    """
    background = flag(fields, "background")
    if not _may_wait(fields):
        message = (
            "This API answers requests that may wait: set 'background' to true and retrieve the response "
            "until it has ended, or set 'service_tier' to 'flex'. Send others to the inference server."
        )
        raise invalid_value("background", message)
    if flag(fields, "stream"):
        message = "'stream' cannot be combined with 'background' or the service tier 'flex'."
        raise invalid_value("stream", message)
    if background and bytes(fields.get("store", b"")) == b"false":
        message = "'background' needs 'store': a response that is not stored cannot be retrieved."
        raise invalid_value("store", message)
    return background


def _checked(id: str) -> str:
    if not is_call_id(id, _PREFIX):
        raise call_not_found(id)
    return id
