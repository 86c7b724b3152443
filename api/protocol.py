"""uvicorn's connections with bounds: on the size and time of headers, on idle clients, on stalled readers."""

import asyncio

import orjson
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

MAX_PENDING_HEADER_BYTES = 64 * 1024
MAX_UNWANTED_BYTES = 16 * 1024 * 1024  # of a body, after it was answered: many clients read only then


def bounded(header_seconds: float, stall_seconds: float) -> type[HttpToolsProtocol]:
    """With these bounds: until a request's headers are there, and on a client that reads nothing."""

    class Chosen(BoundedProtocol):
        seconds_for_headers = header_seconds
        seconds_stalled = stall_seconds

    return Chosen


class BoundedProtocol(HttpToolsProtocol):
    """Refuses in the API's shape what never becomes a request."""

    seconds_for_headers = 15.0
    seconds_stalled = 60.0
    _in_headers = False
    _pending = 0
    _unwanted = 0
    _deadline: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_deadline()
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        before = self._in_headers
        super().data_received(data)
        if before and self._in_headers:
            self._pending += len(data)
        if self._pending > MAX_PENDING_HEADER_BYTES:
            self._refuse(431, "The headers of this request are too large.")
        elif self._is_idle:
            self._take_unwanted(len(data))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_headers, self._pending = True, 0
        self._expect_headers()

    def on_headers_complete(self) -> None:
        self._in_headers, self._pending, self._unwanted = False, 0, 0
        self._cancel_deadline()
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.more_body and not self.transport.is_closing():
            self._expect_headers()  # what is left of this body has to come by then

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled = self.loop.call_later(self.seconds_stalled, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, msg)

    @property
    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete  # pyright: ignore[reportUnnecessaryComparison]

    def _take_unwanted(self, size: int) -> None:
        """What comes after an answer and is no request yet: the rest of a body, blank lines."""
        self._unwanted += size
        if self._unwanted > MAX_UNWANTED_BYTES:
            self.transport.close()
        elif self._deadline is None:
            self._expect_headers()

    def _expect_headers(self) -> None:
        self._cancel_deadline()
        self._deadline = self.loop.call_later(self.seconds_for_headers, self._too_late)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_late(self) -> None:
        self._deadline = None
        if not self._is_idle:  # headers of the next request, while this one is answered
            return
        if self._in_headers:
            self._refuse(408, "The headers of this request did not come in time.")
        else:
            self.transport.close()

    def _refuse(self, status: int, message: str) -> None:
        """An answer to what is no request, and the connection's end."""
        if self.transport.is_closing():
            return
        details = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
        body = orjson.dumps({"error": details})
        head = [
            STATUS_LINE[status],
            b"content-type: application/json\r\nconnection: close\r\n",
            b"content-length: %d\r\n\r\n" % len(body),
        ]
        self.transport.write(b"".join(head) + body)
        self.transport.close()
