"""What every answer has: a request id, a count, and OpenAI's shape even if nobody expected the error."""

import logging
import re
import time
from collections.abc import Generator
from contextlib import contextmanager

import uuid_utils
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import internal_error
from batchwright.telemetry import tracing
from batchwright.telemetry.context import about, learn
from batchwright.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)

_SANE_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}", re.ASCII)
_TRACED = "/v1/"
_METHODS = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})


class Edge:
    """The outermost middleware of ours."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        answer = _Answer(scope, send, self._metrics)
        with about(request_id=answer.id), _traced(scope, answer):
            await self._answer(scope, receive, answer)

    async def _answer(self, scope: Scope, receive: Receive, answer: "_Answer") -> None:
        try:
            await self._app(scope, receive, answer.send)
        except Exception as error:  # the edge of the process: logged, and nothing of it reaches the client
            tracing.failed(error)
            logger.exception("a request failed", extra={"path": scope["path"]})
            if answer.started:
                raise  # only breaking the connection tells the client that the rest is missing
            await internal_error()(scope, receive, answer.send)


class _Answer:
    """One request's answer on its way out."""

    def __init__(self, scope: Scope, send: Send, metrics: Metrics) -> None:
        self._scope = scope
        self._send = send
        self._metrics = metrics
        self.id = _request_id(scope)
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
def _traced(scope: Scope, answer: _Answer) -> Generator[None]:
    """A span of a call to the API proper: probes and scrapes are none."""
    spans = tracing.spans()
    if spans is None or not scope["path"].startswith(_TRACED):
        yield
        return
    with spans.call(answer.method, scope["path"], Headers(scope=scope)) as call:
        yield
        learn(**scope.get("path_params", {}))
        call.answered(answer.status, answer.route)


def _request_id(scope: Scope) -> str:
    """The caller's, if it is harmless in logs and headers."""
    given = Headers(scope=scope).get("x-request-id", "")
    return given if _SANE_ID.fullmatch(given) else "req_" + uuid_utils.uuid7().hex
