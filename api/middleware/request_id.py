"""Middleware that adds a request id, metrics and a trace span, and handles unexpected exceptions.

A request passes through this middleware first. Only `MessageErrorMiddleware`, which translates errors of
Anthropic's routes, comes before it.
"""

import logging
import re
import time
from collections.abc import Generator
from contextlib import contextmanager

import uuid_utils
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from batchwright.api.errors import internal_error_response
from batchwright.api.middleware.access_log import path_for_logs, without_token
from batchwright.telemetry import tracing
from batchwright.telemetry.context import add_fields, bind_fields
from batchwright.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)

_SAFE_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}", re.ASCII)
_TRACED_PREFIX = "/v1/"
_METHODS = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})


class RequestIdMiddleware:
    """The middleware that gives each request an id and records metrics. It returns a 500 response if an
    unexpected exception is raised.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        response = _RecordedResponse(scope, send, self._metrics)
        with bind_fields(request_id=response.id), _span(scope, response):
            try:
                await self._app(scope, receive, response.send)
            except Exception as error:  # the details are logged, and the client does not get them
                tracing.record_error(error)
                logger.exception("a request failed", extra={"path": path_for_logs(scope)})
                if response.started:
                    raise  # a broken connection shows the client that the rest is missing
                await internal_error_response()(scope, receive, response.send)


class _RecordedResponse:
    """The response to one request. When the response starts, `send` adds the request id to the headers, and
    records metrics.
    """

    def __init__(self, scope: Scope, send: Send, metrics: Metrics) -> None:
        self._scope = scope
        self._send = send
        self._metrics = metrics
        # The request id of the caller is used only if it is safe in logs and headers.
        given = Headers(scope=scope).get("x-request-id", "")
        self.id = given if _SAFE_ID.fullmatch(given) else "req_" + uuid_utils.uuid7().hex
        self.started = False
        self._began = time.monotonic()
        self.status = 0

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            self.status = message["status"]
            MutableHeaders(scope=message)["x-request-id"] = self.id
            self._metrics.api_requests.labels(self.method, self.route, self.status).inc()
            self._metrics.api_seconds.labels(self.method, self.route).observe(time.monotonic() - self._began)
        await self._send(message)

    @property
    def method(self) -> str:
        return self._scope["method"] if self._scope["method"] in _METHODS else "other"

    @property
    def route(self) -> str:
        return getattr(self._scope.get("route"), "path", "unknown")


@contextmanager
def _span(scope: Scope, response: _RecordedResponse) -> Generator[None]:
    """Context manager that records a trace span for the request.

    It does nothing if tracing is off, or if the path does not start with `/v1/`.
    """
    spans = tracing.spans()
    if spans is None or not scope["path"].startswith(_TRACED_PREFIX):
        yield
        return
    with spans.api_call(response.method, without_token(scope["path"]), Headers(scope=scope)) as call:
        yield
        add_fields(**scope.get("path_params", {}))
        call.record_response(response.status, response.route)
