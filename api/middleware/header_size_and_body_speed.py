"""Limits the size of request headers, rejects slow bodies, and adds security headers to every response."""

import asyncio

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from batchwright.api.errors import ApiError, error_response

MAX_HEADER_BYTES = 32 * 1024
MAX_HEADERS = 100
BODY_SECONDS = 60.0  # maximum pause of a client while it sends a body
MIN_BODY_BYTES_PER_SECOND = 1000.0
_SECURITY_HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}
_DENY_ALL_POLICY = "default-src 'none'; frame-ancestors 'none'"


class HeaderSizeAndBodySpeedMiddleware:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        response = _ResponseWithHeaders(send)
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        size = sum(len(name) + len(value) + 4 for name, value in headers)
        size += len(scope.get("raw_path") or b"")
        if len(headers) > MAX_HEADERS or size > MAX_HEADER_BYTES:
            message = (
                f"The headers of this request have over {MAX_HEADER_BYTES} bytes, "
                f"or there are over {MAX_HEADERS}."
            )
            await error_response(ApiError(431, message))(scope, receive, response.send)
            return
        body = _TimedBody(receive, BODY_SECONDS, MIN_BODY_BYTES_PER_SECOND)
        await self._app(scope, body.receive, response.send)


class _TimedBody:
    """A receiver of a request body, which rejects clients that send too slowly.

    Each request has a time budget in seconds. The time spent waiting for the client is subtracted from the
    budget, and each received byte adds some time to it. A request whose budget is used up gets a 408.
    """

    def __init__(self, receive: Receive, seconds: float, rate: float) -> None:
        """Create the receiver of one request body.

        The client has a time budget: the number of seconds for which the receiver still waits for the client
        to send. Waiting uses up the budget, and received bytes add to it.

        Args:
            receive: ASGI function that returns the next message of the client.
            seconds: the time budget at the beginning. It never becomes greater than this.
            rate: number of received bytes that add one second to the budget.
        """
        self._receive = receive
        self._budget, self._rate = seconds, rate
        self._left = seconds
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
        self._left = min(self._left - (clock() - began) + size / self._rate, self._budget)
        self._complete = not message.get("more_body", False)
        return message

    def _timeout_error(self) -> ApiError:
        text = f"No part of the request's body arrived for {self._left:.3g} seconds."
        if self._left < self._budget / 2:
            text = (
                f"The request's body arrives too slowly: at least {self._rate:g} bytes per second "
                f"are required, and it fell {self._budget:g} seconds behind."
            )
        return ApiError(408, text, headers={"Connection": "close"})


class _ResponseWithHeaders:
    def __init__(self, send: Send) -> None:
        self._send = send

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in _SECURITY_HEADERS.items():
                headers[name] = value
            headers.setdefault("content-security-policy", _DENY_ALL_POLICY)
            headers.setdefault("cache-control", "no-store")
        await self._send(message)
