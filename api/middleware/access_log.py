"""Access log: one log message per request, with method, path, status, duration and sizes."""

import logging
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from batchwright.rules.backends.callback_tokens import CALLBACK_PATH, may_contain_token
from batchwright.telemetry.redaction import REDACTED

logger = logging.getLogger(__name__)

_PROBES = frozenset({"/healthz", "/readyz", "/metrics"})
_MAX_PATH_CHARACTERS = 256


def without_token(path: str) -> str:
    """Return the path for logs. In the path of a backend's callback, the token is redacted."""
    return f"{CALLBACK_PATH}{REDACTED}" if may_contain_token(path) else path


def path_for_logs(scope: Scope) -> str:
    """Return the path of a request for a log message, without the query string.

    In the path of a backend's callback, the token is redacted. The path stays percent-encoded, because
    decoded text could contain line breaks.
    """
    raw: bytes = scope.get("raw_path") or b""
    return without_token(raw[:_MAX_PATH_CHARACTERS].decode("ascii", "backslashreplace"))


class AccessLogMiddleware:
    """The middleware that logs each request at level INFO. Health probes and metric scrapes are logged at
    level DEBUG.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        entry = _AccessLogEntry(scope, receive, send)
        try:
            await self._app(scope, entry.receive, entry.send)
        finally:
            entry.log()


class _AccessLogEntry:
    """The log entry of one request. It collects data such as the number of bytes. `log` writes the entry at
    the end of the response.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope, self._receive, self._send = scope, receive, send
        self._began = time.monotonic()
        self._status = 500  # stays 500 after an exception
        self._received = self._sent = 0

    async def receive(self) -> Message:
        message = await self._receive()
        self._received += len(message.get("body", b""))
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
        self._sent += len(message.get("body", b""))
        await self._send(message)

    def log(self) -> None:
        level = logging.DEBUG if self._scope["path"] in _PROBES else logging.INFO
        logger.log(
            level,
            "request",
            extra={
                "method": self._scope["method"],
                "path": path_for_logs(self._scope),
                "status": self._status,
                "seconds": round(time.monotonic() - self._began, 4),
                "received_bytes": self._received,
                "sent_bytes": self._sent,
            },
        )
