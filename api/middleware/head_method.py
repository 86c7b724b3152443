"""Answers HEAD on every GET route with the same response without its body (RFC 9110)."""

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_HEAD_REQUESTED = "batchwright.head"  # key in the ASGI scope of a HEAD request


def is_head(request: Request) -> bool:
    """Return True if the client sent HEAD. A route can then skip reading content from storage."""
    requested: bool = request.scope.get(_HEAD_REQUESTED, False)
    return requested


class HeadMethodMiddleware:
    """A middleware that passes a HEAD request to the routes as a GET request, and removes the body from the
    response.

    If a route does not read the content for HEAD, its response has the header `Content-Length: 0`. The
    middleware removes this header, because the response to GET can have content.

    Outer middleware, such as authentication and logs, still sees HEAD.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return

        async def without_body(message: Message) -> None:
            if message["type"] == "http.response.start":
                scope["method"] = "HEAD"
                headers = MutableHeaders(scope=message)
                if headers.get("content-length") == "0":
                    del headers["content-length"]
            elif message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        scope["method"], scope[_HEAD_REQUESTED] = "GET", True
        try:
            await self._app(scope, receive, without_body)
        finally:
            scope["method"] = "HEAD"
