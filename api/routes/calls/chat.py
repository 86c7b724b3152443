"""/v1/chat/completions: completions for which the client waits on an open connection."""

from contextlib import AsyncExitStack
from functools import partial

from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel, ConfigDict, Field, JsonValue

from batchwright.api.auth.caller import tenant_of
from batchwright.api.dependencies import ApiDependencies
from batchwright.api.errors import invalid_value
from batchwright.api.openapi import error_responses
from batchwright.api.routes.calls.call_body import CallBodies, Fields, check_body, flag, model_of, text
from batchwright.api.routes.calls.flex import FLEX, FlexCalls, disconnected_response, failure_response
from batchwright.api.routes.calls.interactive_passthrough import InteractiveForwarder
from batchwright.api.schemas.json_body import json_body_spec, process_body
from batchwright.api.services.calls.acceptance import HELD, CallRequest
from batchwright.api.services.idempotency import idempotency_key_parameter
from batchwright.contracts.terms import Endpoint
from batchwright.rules.calls.call_lines import edit_body
from batchwright.rules.calls.call_results import success_of


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


class ChatRoutes:
    def __init__(
        self,
        deps: ApiDependencies,
        bodies: CallBodies,
        flex: FlexCalls,
        interactive: InteractiveForwarder | None,
    ) -> None:
        """Create the routes.

        Args:
            deps: dependencies of the API.
            bodies: reader of the requests' bodies.
            flex: sends calls with the service tier `flex`, as lines of batches.
            interactive: sends all other calls to backends immediately. If it is None, only calls with the
                service tier `flex` are accepted.
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
