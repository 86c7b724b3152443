"""Limits the size of request headers, and rejects clients that send a body too slowly."""

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from batchwright.api.errors import ApiError, error_response

MAX_HEADER_BYTES = 32 * 1024
MAX_HEADERS = 100
BODY_SECONDS = 60.0  # maximum pause of a client while it sends a body
MIN_BODY_BYTES_PER_SECOND = 1000.0


class HeaderSizeAndBodySpeedMiddleware:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        size = sum(len(name) + len(value) + 4 for name, value in headers)
        size += len(scope.get("raw_path") or b"")
        if len(headers) > MAX_HEADERS or size > MAX_HEADER_BYTES:
            message = (
                f"The headers of this request have over {MAX_HEADER_BYTES} bytes, "
                f"or there are over {MAX_HEADERS}."
            )
            await error_response(ApiError(431, message))(scope, receive, send)
            return
        await self._app(scope, _TimedBody(receive).receive, send)


class _TimedBody:
    """The body of one request. If the client sends the body too slowly, `receive` raises a 408 error.

    Each request begins with `BODY_SECONDS` seconds to wait for the client. The time spent waiting is
    subtracted. For every `MIN_BODY_BYTES_PER_SECOND` bytes that arrive, one second is added, but the sum
    never exceeds `BODY_SECONDS`. If no time is left, the request is rejected.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._left = BODY_SECONDS
        self._complete = False

    async def receive(self) -> Message:
        if self._complete:
            return await self._receive()
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            async with asyncio.timeout(self._left):
                message = await self._receive()
        except TimeoutError:
            raise self._timeout_error() from None
        size = len(message.get("body", b""))
        self._left = min(self._left - (clock() - began) + size / MIN_BODY_BYTES_PER_SECOND, BODY_SECONDS)
        self._complete = not message.get("more_body", False)
        return message

    def _timeout_error(self) -> ApiError:
        text = f"No part of the request's body arrived for {self._left:.3g} seconds."
        if self._left < BODY_SECONDS / 2:
            text = (
                f"The request's body arrives too slowly: at least {MIN_BODY_BYTES_PER_SECOND:g} bytes per "
                f"second are required, and it fell {BODY_SECONDS:g} seconds behind."
            )
        return ApiError(408, text, headers={"Connection": "close"})
