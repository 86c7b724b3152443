"""HEAD: wherever there is a GET, the same answer without its body (RFC 9110)."""

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_ASKED = "batchwright.head"  # in the scope of such a request


def is_head(request: Request) -> bool:
    """Whether nothing of the body will be sent: what is dear to make need not be made."""
    asked: bool = request.scope.get(_ASKED, False)
    return asked


class Heads:
    """Inside of the door and of what counts: routes see a GET, all else the HEAD that it is."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return

        async def without_body(message: Message) -> None:
            if message["type"] == "http.response.start":
                scope["method"] = "HEAD"
            elif message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        scope["method"], scope[_ASKED] = "GET", True
        try:
            await self._app(scope, receive, without_body)
        finally:
            scope["method"] = "HEAD"
