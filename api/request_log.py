"""One log entry a request: what was asked, how it was answered, how long it took."""

import logging
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from batchwright.rules.callbacks import PATH
from batchwright.telemetry.secrets import STRUCK

logger = logging.getLogger(__name__)

_PROBES = frozenset({"/healthz", "/readyz", "/metrics"})
_TOKENS = PATH.encode()
_LONGEST = 256  # characters of a path


class RequestLog:
    """Inside of what binds the request's id; probes and scrapes are logged at DEBUG."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        entry = _Entry(scope, receive, send)
        try:
            await self._app(scope, entry.receive, entry.send)
        finally:
            entry.log()


class _Entry:
    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope, self._receive, self._send = scope, receive, send
        self._began = time.monotonic()
        self._status = 500  # of an exception that nobody answered inside
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
                "path": self._path(),
                "status": self._status,
                "seconds": round(time.monotonic() - self._began, 4),
                "received_bytes": self._received,
                "sent_bytes": self._sent,
            },
        )

    def _path(self) -> str:
        """As it was sent: what is decoded could break a line of the log. Without the query, and tokens."""
        raw: bytes = self._scope.get("raw_path") or b""
        if raw.startswith(_TOKENS):
            return f"{PATH}{STRUCK}"
        return raw[:_LONGEST].decode("ascii", "backslashreplace")
