"""Rejects paths that end with a line break, because routes treat them like the same path without the line
break.

The pattern of a route ends with `$`, which also matches before a line break at the end. So `/v1/stats%0A`
would reach the route `/v1/stats`. But authentication compares whole paths, so for `/v1/stats%0A` it would
require only the scope (right) `read`, and not the scope `viewer` that this route needs.
"""

from starlette.types import ASGIApp, Receive, Scope, Send

from batchwright.api.errors import ApiError, error_response
from batchwright.api.middleware.access_log import path_for_logs


class PathGuardMiddleware:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].endswith("\n"):
            message = f"Invalid URL ({scope['method']} {path_for_logs(scope)})"
            await error_response(ApiError(404, message))(scope, receive, send)
        else:
            await self._app(scope, receive, send)
