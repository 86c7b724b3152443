"""Calls with `service_tier: "flex"`: the connection stays open until the backend has answered.

The call waits in the queue like a line of a batch. If the connection breaks, the client can get the answer
with the same request and the same Idempotency-Key.
"""

from contextlib import AsyncExitStack
from functools import partial
from typing import Protocol

from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel, ConfigDict, Field, JsonValue

from batchwright.api.auth.caller import caller_of, tenant_of
from batchwright.api.dependencies import ApiDependencies
from batchwright.api.errors import (
    RETRY_AFTER_SECONDS,
    ApiError,
    conflict,
    error_response,
    invalid_value,
)
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
from batchwright.api.schemas.json_body import json_body_spec, process_body
from batchwright.api.services.calls.acceptance import HELD, CallRequest, Calls
from batchwright.api.services.calls.held_calls import HeldCalls, late_error
from batchwright.api.services.idempotency import idempotency_key_parameter
from batchwright.contracts.calls import Call
from batchwright.contracts.errors import LineCode
from batchwright.contracts.terms import Endpoint
from batchwright.database.tables.calls import CallKey
from batchwright.rules.calls.call_lines import edit_body
from batchwright.rules.calls.call_results import error_of, read_result, success_of

FLEX = "flex"
_STATUSES: dict[str, int] = {
    LineCode.POLICY_REJECTED: 403,
    LineCode.MODEL_NOT_FOUND: 404,
    LineCode.INVALID_REQUEST: 400,
}


class FlexCalls:
    """Submits calls and keeps each client's connection open until its call has ended."""

    def __init__(self, deps: ApiDependencies, calls: Calls) -> None:
        self._settings, self._calls, self._held = deps.settings, calls, HeldCalls(deps)
        self._stored = deps.database.calls

    async def answer(self, request: Request, call: CallRequest, fields: Fields) -> Call | None:
        """Submit a call, wait until it has ended, and return it. Return None if the client has disconnected.

        If the wait ends early and the request has no idempotency key, the call is cancelled, because the
        client could not get the answer later.

        Args:
            fields: the fields of the request's body. A digest of them is stored with the idempotency key.

        Raises:
            ApiError: as in `Calls.submit`. Too many connections wait, or there is no answer within 15 minutes
                (429). The process is stopping, or the call no longer exists (503).
        """
        tenant, caller = tenant_of(request, self._settings), caller_of(request, self._settings)
        key = await sent_key(request, fields)
        with self._held.connections.place(tenant):
            id, has_ended = (await self._calls.submit(call, tenant, caller, key)).id, False
            try:
                has_ended = await self._held.wait(CallKey(tenant, id), request.receive)
            finally:
                if not has_ended and key is None:
                    await self._calls.cancel(tenant, id)
            if not has_ended:
                return None
            ended = await self._stored.get(tenant, id)
        if ended is None:
            message = "The call no longer exists. Send the same request again."
            raise ApiError(503, message, headers={"Retry-After": str(RETRY_AFTER_SECONDS)})
        return ended


def disconnected_response() -> Response:
    """Return a response for a client that has disconnected. Only the access log shows it."""
    return Response(status_code=499)


def failure_response(call: Call) -> Response:
    """Return the error response for a call that has ended without a successful answer."""
    response = None if call.answer is None else read_result(call.answer).response
    if response is not None:
        return Response(bytes(response.body), response.status_code, media_type="application/json")
    error = error_of(call)
    match error.code:
        case LineCode.BATCH_EXPIRED:
            return error_response(late_error())
        case "cancelled" | LineCode.BATCH_CANCELLED:
            return error_response(conflict("The call was cancelled.", code="cancelled"))
        case code:
            return error_response(ApiError(_STATUSES.get(code, 500), error.message, code=code))


class _ChatBody(BaseModel):
    """Schema of the body of a chat completion. Only these fields are checked.

    All other fields are passed on to the backend unchanged.
    """

    model_config = ConfigDict(extra="allow")

    model: str = Field(min_length=1, max_length=256, description="a model that a backend serves")
    messages: list[JsonValue]


class _AnyChatBody(_ChatBody):
    service_tier: str | None = Field(None, description="flex: the connection is held until the answer")


class _FlexChatBody(_ChatBody):
    service_tier: str = Field(pattern="^flex$", description="flex")


class AnswersAtOnce(Protocol):
    async def answer(
        self, request: Request, endpoint: Endpoint, fields: Fields, opened: AsyncExitStack
    ) -> Response:
        """Send a request to a backend at once, and return the answer.

        Args:
            fields: the fields of the request's body.
            opened: resources of the request, such as counted bytes. They are kept until the response is sent.
        """
        ...


class ChatRoutes:
    def __init__(
        self,
        deps: ApiDependencies,
        bodies: CallBodies,
        flex: FlexCalls,
        interactive: AnswersAtOnce | None = None,
    ) -> None:
        """Create the routes. If `interactive` is None, only calls with the service tier `flex` are
        accepted.
        """
        self._settings, self._bodies, self._flex = deps.settings, bodies, flex
        self._interactive = interactive

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/v1/chat/completions", tags=["Single calls"])
        body, of_backends = (_FlexChatBody, ()) if self._interactive is None else (_AnyChatBody, (502, 504))
        router.add_api_route(
            "",
            self.create,
            methods=["POST"],
            response_class=Response,
            openapi_extra=json_body_spec(body),
            responses={
                200: {"description": "The backend's response", "content": {"application/json": {}}},
                **error_responses(403, 404, 409, 429, *of_backends),
            },
            dependencies=[Depends(idempotency_key_parameter)],
        )
        return router

    async def create(self, request: Request) -> Response:
        """Create a chat completion. The connection stays open until the completion is ready."""
        async with AsyncExitStack() as opened:
            reading = self._bodies.read(request, tenant_of(request, self._settings))
            return await self._answer(request, await opened.enter_async_context(reading), opened)

    async def _answer(self, request: Request, fields: Fields, opened: AsyncExitStack) -> Response:
        if text(fields, "service_tier") != FLEX:
            if self._interactive is not None:
                return await self._interactive.answer(request, Endpoint.CHAT_COMPLETIONS, fields, opened)
            message = (
                "This API answers chat completions that may wait: set 'service_tier' to 'flex'. Send "
                "requests that cannot wait to the inference server."
            )
            raise invalid_value("service_tier", message)
        if flag(fields, "stream"):
            message = "'stream' cannot be combined with the service tier 'flex'."
            raise invalid_value("stream", message)
        call = await process_body(request, partial(self._parse, fields))
        ended = await self._flex.answer(request, call, fields)
        if ended is None:
            return disconnected_response()
        answered = success_of(ended)
        if answered is None:
            return failure_response(ended)
        return Response(bytes(answered.body), media_type="application/json")

    def _parse(self, fields: Fields) -> CallRequest:
        model = model_of(fields, self._settings)
        body = edit_body(fields, ("service_tier", "stream", "stream_options"))
        check_body(Endpoint.CHAT_COMPLETIONS, body)
        return CallRequest("chatcmpl-", Endpoint.CHAT_COMPLETIONS, model, body, HELD, notifies=False)
