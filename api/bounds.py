"""Bounds on what a client may send and headers that keep browsers from guessing, on every route."""

import asyncio

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import ApiError, error_response

MAX_HEADER_BYTES = 32 * 1024
MAX_HEADERS = 100
_HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}
_NO_PAGE = "default-src 'none'; frame-ancestors 'none'"


class Bounds:
    def __init__(self, app: ASGIApp, body_seconds: float) -> None:
        """`body_seconds`: how long a client may be silent while its body is awaited."""
        self._app = app
        self._body_seconds = body_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        answer = _Answer(send)
        if _too_many(scope):
            message = (
                f"The headers of this request have over {MAX_HEADER_BYTES} bytes, or are over {MAX_HEADERS}."
            )
            await error_response(ApiError(431, message))(scope, receive, answer.send)
            return
        await self._app(scope, _Body(receive, self._body_seconds).receive, answer.send)


class _Body:
    """A request's body; once it is whole, waiting for the client to leave has no bound."""

    def __init__(self, receive: Receive, seconds: float) -> None:
        self._receive = receive
        self._seconds = seconds
        self._whole = False

    async def receive(self) -> Message:
        if self._whole:
            return await self._receive()
        try:
            async with asyncio.timeout(self._seconds):
                message = await self._receive()
        except TimeoutError:
            text = f"Nothing of the request's body came for {self._seconds:g} seconds."
            raise ApiError(408, text, headers={"Connection": "close"}) from None
        self._whole = not message.get("more_body", False)
        return message


class _Answer:
    def __init__(self, send: Send) -> None:
        self._send = send

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers[name] = value
            headers.setdefault("content-security-policy", _NO_PAGE)
            headers.setdefault("cache-control", "no-store")
        await self._send(message)


def _too_many(scope: Scope) -> bool:
    headers: list[tuple[bytes, bytes]] = scope["headers"]
    size = sum(len(name) + len(value) + 4 for name, value in headers)
    return len(headers) > MAX_HEADERS or size + len(scope.get("raw_path") or b"") > MAX_HEADER_BYTES
