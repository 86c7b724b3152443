"""Errors of Anthropic's routes, in the format that Anthropic's clients read.

The rest of the API builds errors in OpenAI's format. `MessageErrorMiddleware` translates these errors. This
middleware is the outermost one, so that errors of other middleware, such as authentication, are translated.
"""

from collections.abc import MutableMapping
from typing import Any

import msgspec
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from batchwright.api.openapi import ResponseSpec, ResponseSpecs, error_responses
from batchwright.contracts.api_objects.anthropic import ErrorType, MessageErrorDetails, MessageErrorObject

PREFIX = "/v1/messages"
REQUEST_ID_HEADER = "request-id"
_TYPES: dict[int, ErrorType] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_CONTENT: ResponseSpec = {"application/json": {"schema": {"$ref": "#/components/schemas/MessageErrorObject"}}}


class _Details(msgspec.Struct):
    message: str


class _Body(msgspec.Struct):
    error: _Details


_DECODER = msgspec.json.Decoder(_Body)


def error_type(status: int) -> ErrorType:
    """Return the name of Anthropic's error type for an HTTP status, such as `not_found_error` for 404."""
    return _TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")


def message_error_responses(*statuses: int) -> ResponseSpecs:
    """Return descriptions of error responses for `/openapi.json`, in Anthropic's format."""
    return {
        status: {**response, "content": _CONTENT} for status, response in error_responses(*statuses).items()
    }


class MessageErrorMiddleware:
    """The middleware that converts errors of paths below `/v1/messages` to Anthropic's format.

    It also adds the header `request-id`. It must be the outermost middleware, because it needs the request id
    that other middleware has set.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not f"{scope['path']}/".startswith(f"{PREFIX}/"):
            await self._app(scope, receive, send)
            return
        await self._app(scope, receive, _TranslatedResponse(send).send)


class _TranslatedResponse:
    """One response on its way to the client. It gets the header `request-id`.

    A JSON error is collected first, and then sent in Anthropic's format. Other bodies are not changed.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._start: MutableMapping[str, Any] | None = None  # start of an error response that is held back
        self._body = bytearray()

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            request_id = headers.get("x-request-id")
            if request_id is not None:
                headers[REQUEST_ID_HEADER] = request_id
            if message["status"] >= 400 and headers.get("content-type") == "application/json":
                self._start = message
                return
        elif self._start is not None:
            self._body += message.get("body", b"")
            if not message.get("more_body", False):
                await self._send_error(self._start)
            return
        await self._send(message)

    async def _send_error(self, start: MutableMapping[str, Any]) -> None:
        headers = MutableHeaders(scope=start)
        body = b""
        del headers["content-length"]
        if self._body:  # the response to a HEAD request has none, so the length of the new one is not known
            body = _translated(bytes(self._body), start["status"], headers)
            headers["content-length"] = str(len(body))
        await self._send(start)
        await self._send({"type": "http.response.body", "body": body})


def _translated(body: bytes, status: int, headers: Headers) -> bytes:
    details = MessageErrorDetails(type=error_type(status), message=_DECODER.decode(body).error.message)
    error = MessageErrorObject(error=details, request_id=headers.get(REQUEST_ID_HEADER))
    return error.model_dump_json().encode()
