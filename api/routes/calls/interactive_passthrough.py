"""Interactive calls: requests without a batch that are sent to a backend immediately. The backend's answer is
passed on to the client as it arrives.

Without the setting `interactive_passthrough`, the API does not use this module.
"""

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack
from functools import partial
from io import BytesIO

import httpx
import msgspec
from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.types import Send

from batchwright.api.auth.caller import caller_of, tenant_of
from batchwright.api.dependencies import ApiDependencies
from batchwright.api.errors import RETRY_AFTER_SECONDS, ApiError, error_response
from batchwright.api.openapi import error_responses
from batchwright.api.routes.calls.call_body import CallBodies, Fields, flag, model_of, nested
from batchwright.api.routes.calls.flex import disconnected_response
from batchwright.api.routes.calls.relayed_responses import (
    EVENTS,
    EventRelay,
    HeldResponse,
    error_event,
    pass_on,
    while_open,
)
from batchwright.api.schemas.json_body import json_body_spec, process_body
from batchwright.api.services.calls.backend_answer import BackendAnswer, InteractiveCall
from batchwright.api.services.calls.interactive_calls import InteractiveCalls, error_of
from batchwright.api.services.calls.watched_connections import WatchedConnections
from batchwright.contracts.terms import Endpoint
from batchwright.inference.request_outcome import Outcome, invalid_response
from batchwright.inference.transport.base import BackendResponse, ResponseTooLarge
from batchwright.inference.transport.decoding import decode_content
from batchwright.rules.backends.body_rewriting import INLINE_REWRITE_BYTES, with_default_model
from batchwright.rules.calls.call_lines import edit_body
from batchwright.rules.dispatch.retry_policy import SUCCESS, Budget
from batchwright.rules.results.event_stream import EventStream
from batchwright.rules.results.token_usage import NO_TOKENS, tokens_of
from batchwright.telemetry.context import current_fields

logger = logging.getLogger(__name__)
# `/v1/responses` and `/v1/chat/completions` have routes of their own, which also accept calls that may wait.
ONLY_INTERACTIVE = (Endpoint.COMPLETIONS, Endpoint.EMBEDDINGS, Endpoint.MODERATIONS)
_REPORTS_USAGE_IF_ASKED = (Endpoint.CHAT_COMPLETIONS, Endpoint.COMPLETIONS)
_RECEIVE_ERRORS = (httpx.TransportError, httpx.DecodingError, TimeoutError, ResponseTooLarge)
_REFUSED = (
    "The backend refuses this request, although it has accepted others. Change the request, or try again in "
    "a moment: the backend may now refuse all requests."
)
_NO_ANSWER = "The backend's stream contains an error or no answer."
_PAYMENT_REQUIRED = 402  # about the operator's account at the backend


class _CallBody(BaseModel):
    """Schema of the body of an interactive call. Only these fields are checked.

    All other fields are passed on to the backend unchanged.
    """

    model_config = ConfigDict(extra="allow")

    model: str = Field(min_length=1, max_length=256, description="a model that a backend serves")


class InteractiveForwarder:
    """A forwarder of interactive calls (requests that are sent to a backend immediately). It also passes on
    the backends' answers to the clients.
    """

    def __init__(self, deps: ApiDependencies, calls: InteractiveCalls) -> None:
        self._settings, self._calls = deps.settings, calls
        self._held = deps.held_bytes
        self._connections = WatchedConnections(deps.stopping.drained)

    async def answer(
        self, request: Request, endpoint: Endpoint, fields: Fields, opened: AsyncExitStack
    ) -> Response:
        """Send a request to a backend and return the answer, which may be a stream of events.

        If the client disconnects, the request to the backend is aborted. If the process stops, requests in
        flight are aborted shortly before the seconds of the setting `drain_seconds` have passed.

        Args:
            request: the client's request.
            endpoint: endpoint of the backend to which the request is sent.
            fields: the fields of the request's body.
            opened: exit stack that releases the resources of the request, such as its bytes in memory. It is
                closed after the response was sent.

        Raises:
            ApiError: as in `InteractiveCalls.answer`. The backend's answer cannot be used (502). Too many
                clients wait for answers, or too many bytes are in memory (429). The process stops (503).
        """
        tenant = tenant_of(request, self._settings)
        is_stream = flag(fields, "stream")
        prepare = partial(_prepared, endpoint, fields, is_stream=is_stream)
        body, hides_usage = await process_body(request, prepare)
        call = InteractiveCall(
            endpoint,
            model_of(fields, self._settings),
            body,
            tenant,
            caller_of(request, self._settings),
            str(current_fields().get("request_id", "")),
        )
        opened.enter_context(self._calls.connections.place(tenant))
        count = opened.enter_context(self._held.counted(tenant))
        connection = await opened.enter_async_context(self._connections.watched(request.receive))
        async with AsyncExitStack() as sending:  # a backend is free before its whole answer is passed on
            began = sending.enter_async_context(self._calls.answer(call))
            answer = await while_open(connection, began)
            if answer is None:
                return disconnected_response()
            head = answer.response
            media_type = head.headers.get(b"content-type", b"").decode("latin-1")
            encoding = head.headers.get(b"content-encoding", b"").strip().lower()
            is_plain = encoding in (b"", b"identity")
            if is_stream and is_plain and head.status == 200 and media_type.startswith(EVENTS):
                await opened.enter_async_context(sending.pop_all())
                relay = partial(self._relay, answer, EventStream(hides_usage=hides_usage), count)
                return EventRelay(relay, connection, opened.pop_all())
            response = await while_open(connection, self._whole(answer, count))
        return disconnected_response() if response is None else HeldResponse(response, opened.pop_all())

    async def _whole(self, answer: BackendAnswer, count: Callable[[int], None]) -> Response:
        """Receive the whole body of a backend's answer. Return the response for the client.

        Args:
            answer: the backend's answer.
            count: function that counts bytes in memory. It raises ApiError (429) if too many bytes are in
                memory.

        Raises:
            ApiError: the answer is incomplete, cannot be decoded or is too large. Or `count` has raised this
                error.
        """
        head, buffer = answer.response, BytesIO()  # one buffer, because pieces may be of one byte
        try:
            async for piece in self._pieces(answer):
                count(len(piece))
                buffer.write(piece)
            received = buffer.getvalue()
            most = self._settings.max_response_bytes
            body = decode_content(BackendResponse(head.status, head.headers, received), most)
            count(len(body) - len(received))
        except ApiError as error:
            answer.end(str(error.status), None)
            raise
        except _RECEIVE_ERRORS as error:
            answer.end("cut", NO_TOKENS)
            raise error_of(answer.fail(error)) from None
        except asyncio.CancelledError:
            if self._connections.have_ended:
                answer.end("503", None)
            raise
        outcome = answer.read(body)
        if answer.sent.is_prompt_refused:
            response = error_response(ApiError(403, _REFUSED))
        else:
            response = _response_of(outcome, head.status, body)
        answer.end(str(response.status_code), tokens_of(body) if answer.is_success else NO_TOKENS)
        if answer.is_success and answer.is_fallback:
            return _json_response(await _named(body, answer.sent.dispatch.upstream.model), outcome.status)
        return response

    async def _pieces(self, answer: BackendAnswer) -> AsyncGenerator[bytes]:
        """Yield the bytes of a backend's answer as they arrive. They are not decoded or decompressed.

        Raises:
            ResponseTooLarge: the body is too large.
            httpx.TransportError: the connection to the backend failed.
            TimeoutError: the body did not arrive in time.
        """
        size = 0
        async for piece in answer.response.pieces:
            size += len(piece)
            if size > self._settings.max_response_bytes:
                raise ResponseTooLarge
            yield piece

    async def _relay(
        self, answer: BackendAnswer, events: EventStream, count: Callable[[int], None], send: Send
    ) -> None:
        """Send the events of a backend to the client as they arrive.

        The client has already received the status 200. If the backend's answer breaks off, or if `count`
        raises an error, the last event is therefore an error. An incomplete event before it is not sent, so
        that clients can read the error.

        Args:
            answer: the backend's answer.
            events: splits the answer into complete events.
            count: function that counts bytes in memory. It raises ApiError (429) if too many bytes are in
                memory.
            send: ASGI function that sends a message to the client.

        Raises:
            ClientDisconnect: the client keeps the connection open, but reads nothing for too long.
        """
        held = 0
        try:
            async for piece in self._pieces(answer):
                count(len(piece))
                held += len(piece)
                if lines := events.feed(piece):
                    if events.has_answered and not events.has_failed:
                        answer.begin()
                    await pass_on(send, lines)
                    count(events.held_bytes - held)
                    held = events.held_bytes
            last, result = events.finish(), "200"
            if events.has_answered and not events.has_failed:
                answer.succeed()
            else:
                answer.sent.report(invalid_response(_NO_ANSWER))
        except ApiError as error:
            last, result = error_event(error), "cut"
        except _RECEIVE_ERRORS as error:
            last, result = error_event(error_of(answer.fail(error))), "cut"
        finally:
            # A client that leaves early, or a backend that reports nothing, does not make a call free.
            ended = "cut" if self._connections.have_ended else "disconnected"
            answer.end(ended, events.usage, output_tokens=events.events)
        answer.end(result, events.usage, output_tokens=events.events)
        await pass_on(send, last, is_last=True)


class InteractiveRoutes:
    """The routes of the endpoints that accept only interactive calls: requests that are sent to a backend
    immediately.
    """

    def __init__(self, deps: ApiDependencies, bodies: CallBodies, forwarder: InteractiveForwarder) -> None:
        self._settings, self._bodies, self._forwarder = deps.settings, bodies, forwarder

    def router(self) -> APIRouter:
        router = APIRouter(tags=["Single calls"])
        for endpoint in ONLY_INTERACTIVE:
            router.add_api_route(
                endpoint.value,
                self.create,
                methods=["POST"],
                name=endpoint.name.lower(),
                response_class=Response,
                openapi_extra=json_body_spec(_CallBody),
                responses={
                    200: {"description": "The backend's response", "content": {"application/json": {}}},
                    **error_responses(403, 404, 429, 502, 503, 504),
                },
            )
        return router

    async def create(self, request: Request) -> Response:
        """Send the request to a backend of its model immediately, and return the backend's answer."""
        async with AsyncExitStack() as opened:
            reading = self._bodies.read(request, tenant_of(request, self._settings))
            fields = await opened.enter_async_context(reading)
            return await self._forwarder.answer(request, Endpoint(request.url.path), fields, opened)


def _prepared(endpoint: Endpoint, fields: Fields, *, is_stream: bool) -> tuple[bytes, bool]:
    """Return the body to send to the backend, and True if `include_usage` was added to the body.

    Batchwright needs the token usage that the backend reports. For streams, some endpoints report the usage
    only if the body contains `include_usage`. If the client has not sent `include_usage`, this function adds
    it. The caller must then remove the usage from the events for the client, who does not expect it.
    """
    hides_usage = is_stream and endpoint in _REPORTS_USAGE_IF_ASKED and not _asks_for_usage(fields)
    return _with_usage(fields) if hides_usage else edit_body(fields), hides_usage


def _asks_for_usage(fields: Fields) -> bool:
    options = fields.get("stream_options")
    return (
        options is not None
        and bytes(options) != b"null"
        and flag(nested(fields, "stream_options"), "include_usage")
    )


def _with_usage(fields: Fields) -> bytes:
    """Return the body with `include_usage` set in `stream_options`. The backend then reports how many tokens
    it used.
    """
    options = fields.get("stream_options", msgspec.Raw(b"null"))
    known = {} if bytes(options) == b"null" else nested(fields, "stream_options")
    asked = msgspec.json.encode({**known, "include_usage": True})
    return edit_body({**fields, "stream_options": msgspec.Raw(asked)})


async def _named(body: bytes, model: str) -> bytes:
    """Return the body of a backend's answer with the name of a model.

    If `body` already names a model, return it unchanged. Otherwise add the name `model`.
    """
    if len(body) <= INLINE_REWRITE_BYTES:
        return with_default_model(body, model)
    return await asyncio.to_thread(with_default_model, body, model)


def _json_response(body: bytes, status: int) -> Response:
    return Response(body, status, media_type="application/json")


def _response_of(outcome: Outcome, status: int, body: bytes) -> Response:
    """Return the response for the client, made from a backend's answer.

    The body of a success is passed on unchanged, and so is a JSON error (4xx) about the client's request. For
    all other answers, the client gets an error response. Messages that are meant for the operator are only
    logged, for example if the backend rejects the operator's API key.

    Args:
        outcome: what the answer means for the call.
        status: HTTP status of the backend's answer.
        body: body of the backend's answer.
    """
    is_settled = outcome.verdict.budget is Budget.SETTLED
    is_of_client = is_settled and 400 <= outcome.status < 500 and outcome.status != _PAYMENT_REQUIRED
    if outcome.verdict is SUCCESS or (is_of_client and body.lstrip()[:1] == b"{"):
        return _json_response(body, outcome.status)
    message = outcome.message or f"The backend answered {status}."
    error = outcome.operator_message or message
    logger.warning("a backend has not given a usable answer", extra={"status": status, "error": error})
    if outcome.verdict.budget is Budget.CREDENTIALS:
        message = (
            "The backend has refused the call: it does not accept the credentials that the operator has "
            "configured for it, or it refuses this request."
        )
        return error_response(ApiError(502, message))
    retry_after = {}
    if status in (429, 503):
        seconds = RETRY_AFTER_SECONDS if outcome.retry_after is None else math.ceil(outcome.retry_after)
        retry_after = {"Retry-After": str(seconds)}
    code = "rate_limit_exceeded" if status == 429 else None
    shown = status if is_of_client or status in (429, 500, 502, 503, 504) else 502
    return error_response(ApiError(shown, message, code=code, headers=retry_after))
