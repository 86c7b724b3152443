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
    def __init__(self, app: ASGIApp, body_seconds: float, body_rate: float) -> None:
        """How long a client may be silent while its body is awaited, and how many bytes a second it owes."""
        self._app = app
        self._body_seconds, self._body_rate = body_seconds, body_rate

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
        body = _Body(receive, self._body_seconds, self._body_rate)
        await self._app(scope, body.receive, answer.send)


class _Body:
    """A request's body; once it is whole, waiting for the client to leave has no bound.

    The time that is left to wait is spent by waiting and earned by bytes, up to what it was at first: a
    trickle ends as silence does, whatever was sent fast before it. Our own time costs nothing.
    """

    def __init__(self, receive: Receive, seconds: float, rate: float) -> None:
        """`rate`: bytes that earn a second; 0: every byte earns all of it."""
        self._receive = receive
        self._most, self._rate = seconds, rate
        self._left = seconds
        self._whole = False

    async def receive(self) -> Message:
        if self._whole:
            return await self._receive()
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            async with asyncio.timeout(self._left):
                message = await self._receive()
        except TimeoutError:
            raise self._late() from None
        size = len(message.get("body", b""))
        earned = size / self._rate if self._rate else self._most
        self._left = min(self._left - (clock() - began) + earned, self._most)
        self._whole = not message.get("more_body", False)
        return message

    def _late(self) -> ApiError:
        text = f"Nothing of the request's body came for {self._left:.3g} seconds."
        if self._left < self._most / 2:
            text = (
                f"The request's body comes too slowly: it owes {self._rate:g} bytes a second, and fell "
                f"{self._most:g} seconds behind."
            )
        return ApiError(408, text, headers={"Connection": "close"})


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
