"""Interactive calls: the answer of a backend is passed on as it arrives.

Without the setting `interactive_passthrough`, none of this exists.
"""

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import TypeVar

import httpx
import msgspec
from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from batchwright.api.auth.caller import caller_of, tenant_of
from batchwright.api.dependencies import ApiDependencies
from batchwright.api.errors import RETRY_AFTER_SECONDS, ApiError, error_response
from batchwright.api.openapi import error_responses
from batchwright.api.routes.calls.call_body import CallBodies, Fields, HeldBytes, flag, model_of, nested
from batchwright.api.routes.calls.flex import disconnected_response
from batchwright.api.schemas.json_body import json_body_spec
from batchwright.api.services.calls.interactive import (
    BackendAnswer,
    InteractiveCall,
    InteractiveCalls,
    error_of,
)
from batchwright.contracts.terms import Endpoint
from batchwright.inference.client import parse_response
from batchwright.inference.transport.base import BackendResponse, ResponseTooLarge
from batchwright.inference.transport.decoding import decode_content
from batchwright.rules.call_lines import edit_body
from batchwright.rules.dispatch.retry_policy import SUCCESS, Budget
from batchwright.rules.results.event_stream import EventStream
from batchwright.rules.results.token_usage import NO_TOKENS, tokens_of
from batchwright.telemetry.context import current_fields

logger = logging.getLogger(__name__)
# `/v1/responses` and `/v1/chat/completions` have routes of their own, which also accept calls that may wait.
ONLY_INTERACTIVE = (Endpoint.COMPLETIONS, Endpoint.EMBEDDINGS, Endpoint.MODERATIONS)
_REPORTS_USAGE_IF_ASKED = (Endpoint.CHAT_COMPLETIONS, Endpoint.COMPLETIONS)
_EVENTS = "text/event-stream"
_UNBUFFERED = {"x-accel-buffering": "no"}  # otherwise nginx would hold events back
_MAX_SEND_SECONDS = 60.0  # a client that does not read for so long counts as disconnected
_PIECE_BYTES = 64 * 1024  # of a whole answer; the next piece is sent when the client has room for it
_CHECK_SECONDS = 0.25  # how often it is checked if the client has disconnected
_RECEIVE_ERRORS = (httpx.TransportError, httpx.DecodingError, TimeoutError, ResponseTooLarge)
_PAYMENT_REQUIRED = 402  # about the operator's account at the backend
_Result = TypeVar("_Result")


class _CallBody(BaseModel):
    """Schema of the body of an interactive call. Only these fields are checked.

    The backend gets all other fields unchanged.
    """

    model_config = ConfigDict(extra="allow")

    model: str = Field(min_length=1, max_length=256, description="a model that a backend serves")


class InteractiveForwarder:
    """Forwards interactive requests to backends, and their answers to the clients."""

    def __init__(self, deps: ApiDependencies, calls: InteractiveCalls) -> None:
        self._settings, self._calls = deps.settings, calls
        self._answers = HeldBytes("answers")

    async def answer(
        self, request: Request, endpoint: Endpoint, fields: Fields, opened: AsyncExitStack
    ) -> Response:
        """Send a request to a backend and return the answer, which may be a stream of events.

        If the client disconnects, the request to the backend is aborted.

        Args:
            fields: the fields of the request's body.
            opened: resources of the request, such as counted bytes. They are kept until the response is sent.

        Raises:
            ApiError: as in `InteractiveCalls.answer`. Or the backend's answer cannot be used (502), or there
                are too many connections or bytes of answers (429).
        """
        tenant = tenant_of(request, self._settings)
        is_stream = flag(fields, "stream")
        hides_usage = is_stream and endpoint in _REPORTS_USAGE_IF_ASKED and not _asks_for_usage(fields)
        call = InteractiveCall(
            endpoint,
            model_of(fields, self._settings),
            _with_usage(fields) if hides_usage else edit_body(fields),
            tenant,
            caller_of(request, self._settings),
            str(current_fields().get("request_id", "")),
        )
        opened.enter_context(self._calls.connections.place(tenant))
        count = opened.enter_context(self._answers.counted(tenant))
        async with AsyncExitStack() as sending:  # a backend is free before its whole answer is passed on
            began = sending.enter_async_context(self._calls.answer(call))
            answer = await _unless_disconnected(request, began)
            if answer is None:
                return disconnected_response()
            head = answer.response
            media_type = head.headers.get(b"content-type", b"").decode("latin-1")
            encoding = head.headers.get(b"content-encoding", b"").strip().lower()
            is_plain = encoding in (b"", b"identity")
            if is_stream and is_plain and head.status == 200 and media_type.startswith(_EVENTS):
                await opened.enter_async_context(sending.pop_all())
                relay = partial(self._relay, answer, EventStream(hides_usage=hides_usage), count)
                return _EventRelay(relay, opened.pop_all())
            response = await _unless_disconnected(request, self._whole(answer, count))
        return disconnected_response() if response is None else _HeldResponse(response, opened.pop_all())

    async def _whole(self, answer: BackendAnswer, count: Callable[[int], None]) -> Response:
        """Receive the whole body of a backend's answer. Return the response for the client."""
        head, pieces = answer.response, list[bytes]()
        try:
            async for piece in self._pieces(answer):
                count(len(piece))
                pieces.append(piece)
            received = b"".join(pieces)
            pieces.clear()
            most = self._settings.max_response_bytes
            body = decode_content(BackendResponse(head.status, head.headers, received), most)
            count(len(body) - len(received))
        except ApiError as error:
            answer.end(str(error.status), answer.estimate(0))
            raise
        except _RECEIVE_ERRORS as error:
            answer.end("cut", NO_TOKENS)
            raise error_of(answer.failure(error)) from None
        response = _response_of(answer, body)
        tokens = tokens_of(body) if response.status_code == 200 else NO_TOKENS
        answer.end(str(response.status_code), tokens)
        return response

    async def _pieces(self, answer: BackendAnswer) -> AsyncGenerator[bytes]:
        """Yield the pieces of the answer's body. Raises one of `_RECEIVE_ERRORS` if it cannot be received."""
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

        If the answer breaks off, send an error as the last event: the status is already sent and cannot
        change.

        Raises:
            ClientDisconnect: the client does not read, but keeps the connection open.
        """
        held = 0
        try:
            async for piece in self._pieces(answer):
                count(len(piece))
                held += len(piece)
                if lines := events.feed(piece):
                    await _pass_on(send, lines)
                    count(events.held_bytes - held)
                    held = events.held_bytes
            last, result = events.finish(), "200"
        except ApiError as error:
            last, result = _error_event(error), "cut"
        except _RECEIVE_ERRORS as error:
            last, result = _error_event(error_of(answer.failure(error))), "cut"
        finally:
            # A client that leaves early, or a backend that reports nothing, does not make a call free.
            tokens = events.usage or answer.estimate(events.events)
            answer.end("disconnected", tokens)
        answer.end(result, tokens)
        await _pass_on(send, last, is_last=True)


class _EventRelay(Response):
    """Response that sends the events of a backend. It ends when the answer ends or a connection closes."""

    def __init__(self, relay: Callable[[Send], Coroutine[None, None, None]], opened: AsyncExitStack) -> None:
        """Create the response. `relay` sends the events.

        `opened` has resources that are kept until the end.
        """
        self._relay, self._opened = relay, opened
        super().__init__(headers=_UNBUFFERED, media_type=_EVENTS)
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._opened:
            head = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
            await send(head)
            relay = asyncio.create_task(self._relay(send))
            connection = asyncio.create_task(_until_disconnect(receive))
            try:
                await asyncio.wait([relay, connection], return_when=asyncio.FIRST_COMPLETED)
            finally:
                is_complete = relay.done()
                relay.cancel()
                connection.cancel()
                await asyncio.gather(relay, connection, return_exceptions=True)
            if is_complete:
                with suppress(ClientDisconnect):
                    relay.result()


class _HeldResponse(Response):
    """Response that keeps the resources of its request until the client has received the last piece.

    Such resources are, for example, the counted bytes of the answer.
    """

    def __init__(self, shown: Response, opened: AsyncExitStack) -> None:
        self._opened = opened
        super().__init__(bytes(shown.body), shown.status_code, shown.headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._opened:
            head = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
            await send(head)
            body, size = memoryview(self.body), len(self.body)
            with suppress(ClientDisconnect):
                for start in range(0, size, _PIECE_BYTES):
                    end = start + _PIECE_BYTES
                    await _pass_on(send, bytes(body[start:end]), is_last=end >= size)


class InteractiveRoutes:
    """Routes of the endpoints that accept only interactive calls."""

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
        """Send the request to a backend of its model at once, and return the backend's answer."""
        async with AsyncExitStack() as opened:
            reading = self._bodies.read(request, tenant_of(request, self._settings))
            fields = await opened.enter_async_context(reading)
            return await self._forwarder.answer(request, Endpoint(request.url.path), fields, opened)


def _error_event(error: ApiError) -> bytes:
    """Return the bytes that end an event stream with an error. The error begins on a new line."""
    return b"\n\ndata: %b\n\n" % bytes(error_response(error).body)


def _asks_for_usage(fields: Fields) -> bool:
    options = fields.get("stream_options")
    return (
        options is not None
        and bytes(options) != b"null"
        and flag(nested(fields, "stream_options"), "include_usage")
    )


def _with_usage(fields: Fields) -> bytes:
    """Return the body with `stream_options.include_usage` set, so that the backend reports the tokens."""
    options = fields.get("stream_options", msgspec.Raw(b"null"))
    known = {} if bytes(options) == b"null" else nested(fields, "stream_options")
    asked = msgspec.json.encode({**known, "include_usage": True})
    return edit_body({**fields, "stream_options": msgspec.Raw(asked)})


def _response_of(answer: BackendAnswer, body: bytes) -> Response:
    """Return the response for the client. An answer that only concerns the operator becomes an error."""
    status, headers = answer.response.status, answer.response.headers
    outcome = parse_response(status, headers, body, answer.request)
    is_settled = outcome.verdict.budget is Budget.SETTLED
    is_of_client = is_settled and 400 <= outcome.status < 500 and outcome.status != _PAYMENT_REQUIRED
    if outcome.verdict is SUCCESS or (is_of_client and body.lstrip()[:1] == b"{"):
        return Response(body, outcome.status, media_type="application/json")
    message = outcome.message or f"The backend answered {status}."
    error = outcome.operator_message or message
    logger.warning("a backend has not given a usable answer", extra={"status": status, "error": error})
    if outcome.verdict.budget is Budget.CREDENTIALS:
        message = "The backend does not accept the credentials that the operator has configured for it."
        return error_response(ApiError(502, message))
    retry_after = {}
    if status in (429, 503):
        seconds = RETRY_AFTER_SECONDS if outcome.retry_after is None else math.ceil(outcome.retry_after)
        retry_after = {"Retry-After": str(seconds)}
    code = "rate_limit_exceeded" if status == 429 else None
    shown = status if is_of_client or status in (429, 500, 502, 503, 504) else 502
    return error_response(ApiError(shown, message, code=code, headers=retry_after))


async def _unless_disconnected(request: Request, work: Coroutine[None, None, _Result]) -> _Result | None:
    """Wait for `work` and return its result. If the client disconnects first, cancel it and return None."""
    task = asyncio.create_task(work)
    try:
        while not task.done():
            await asyncio.wait([task], timeout=_CHECK_SECONDS)
            if not task.done() and await request.is_disconnected():
                return None
        return task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _pass_on(send: Send, lines: bytes, *, is_last: bool = False) -> None:
    try:
        async with asyncio.timeout(_MAX_SEND_SECONDS):
            await send({"type": "http.response.body", "body": lines, "more_body": not is_last})
    except TimeoutError:
        raise ClientDisconnect from None


async def _until_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
