"""One HTTP/1.1 connection: a request out, its answer parsed by llhttp, one exchange at a time."""

import asyncio
from collections.abc import Callable
from functools import partial

import httptools
import httpx

from batchwright.inference.engine import Answer, AnswerTooLarge, Ended

_MOST_HEAD_BYTES = 64 * 1024
_NO_BODY = (204, 304)


class Silence:
    """Of one exchange: how long a backend may be silent before an answer, and within it; 0: for ever.

    Interim answers (1xx) count as heard, but not as the answer's begin.
    """

    def __init__(self, first_byte: float, idle: float) -> None:
        self._first_byte, self._idle = first_byte, idle
        self._timer: asyncio.TimerHandle | None = None
        self._heard_at = 0.0
        self._fail: Callable[[Exception], None] = _nobody

    def start(self, fail: Callable[[Exception], None]) -> None:
        """`fail` is called once, if at all, before `end`."""
        self._fail = fail
        if self._first_byte:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._first_byte, self._never_began)

    def began(self) -> None:
        """The head of the answer is there."""
        self.end()
        if self._idle:
            self._watch(asyncio.get_running_loop().time())

    def heard(self) -> None:
        self._heard_at = asyncio.get_running_loop().time()

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _watch(self, since: float) -> None:
        self._heard_at = since
        loop = asyncio.get_running_loop()
        self._timer = loop.call_at(since + self._idle, self._look)

    def _look(self) -> None:
        if asyncio.get_running_loop().time() - self._heard_at >= self._idle:
            self._fail(
                TimeoutError(f"The backend fell silent in the middle of its answer for {self._idle:g} s.")
            )
        else:
            self._watch(self._heard_at)

    def _never_began(self) -> None:
        self._fail(TimeoutError(f"The backend did not begin to answer within {self._first_byte:g} s."))


def _nobody(_: Exception) -> None:
    """Before it is started."""


class Connection(asyncio.Protocol):
    """Of an engine's pool. After an exchange it says whether it `is_reusable`; any error closes it."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._ended: Ended | None = None  # to be told of the exchange that is under way
        self._most_bytes = 0
        self._is_kept = True
        self._silence: Silence | None = None
        self._reset()

    @property
    def is_reusable(self) -> bool:
        return self._transport is not None and self._is_kept and self._ended is None

    async def exchange(
        self, head: bytes, body: bytes, most_bytes: int, silence: "Silence | None" = None
    ) -> Answer:
        """Raises httpx.ReadError, RemoteProtocolError, AnswerTooLarge, TimeoutError; cancelled, it closes."""
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self.begin(head, body, most_bytes, partial(_tell, answer), silence)
        try:
            return await answer
        except BaseException:
            self.abort()
            raise

    def begin(
        self, head: bytes, body: bytes, most_bytes: int, ended: Ended, silence: "Silence | None" = None
    ) -> None:
        """The same; `ended` is told, unless it is aborted. Raises httpx.ReadError: it was closed before."""
        if self._transport is None:
            raise httpx.ReadError("Server disconnected")
        self._most_bytes, self._ended, self._silence = most_bytes, ended, silence
        try:
            self._transport.writelines((head, body))
        except BaseException:
            self.abort()
            raise
        if silence is not None:
            silence.start(self._fail)

    def overdue(self) -> None:
        """The exchange has had its time: it raises TimeoutError."""
        self._fail(TimeoutError())

    def abort(self) -> None:
        self._take()
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    # What the event loop tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclass of asyncio's, so that isinstance cannot tell.
        self._transport = transport  # pyright: ignore[reportAttributeAccessIssue]

    def data_received(self, data: bytes) -> None:
        if self._ended is None:
            self.abort()  # nothing was asked
            return
        if self._silence is not None:
            self._silence.heard()
        told = self._size
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fail(httpx.RemoteProtocolError("the backend switches to another protocol"))
        except httptools.HttpParserError as error:
            # An answer that is whole stays whole, whatever follows it.
            self._is_kept = False
            if not self._is_complete:
                self._fail(httpx.RemoteProtocolError(str(error) or type(error).__name__))
        # Without anything of the body it is a head, or what may follow the last chunk.
        self._head_bytes = self._head_bytes + len(data) if self._size == told else 0
        self._judge()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._ended is None:
            return
        if exc is None and self._ends_with_connection:
            self._end()
        elif self._has_head:
            self._fail(httpx.RemoteProtocolError("peer closed connection within its answer"))
        else:
            self._fail(httpx.ReadError(str(exc) if exc else "Server disconnected"))

    # What the parser tells

    def on_message_begin(self) -> None:
        if self._is_complete:
            self._is_kept = False  # something follows the answer that nothing asked for

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._is_complete:
            self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        if self._is_complete:
            return
        self._status = self._parser.get_status_code()
        self._has_head = not 100 <= self._status < 200
        self._is_too_large = self._has_head and _announced(self._headers) > self._most_bytes
        if self._has_head and self._silence is not None:
            self._silence.began()
        has_length = b"content-length" in self._headers or b"transfer-encoding" in self._headers
        self._ends_with_connection = self._has_head and not has_length and self._status not in _NO_BODY

    def on_body(self, body: bytes) -> None:
        if self._is_complete:
            return
        self._size += len(body)
        if self._size <= self._most_bytes:
            self._chunks.append(body)

    def on_message_complete(self) -> None:
        if self._is_complete:
            return
        if self._has_head:
            self._is_complete = True
            self._is_kept = self._is_kept and self._parser.should_keep_alive()
        else:
            self._headers = {}  # of an interim answer: the real one follows

    # What follows

    def _judge(self) -> None:
        if self._ended is None:
            return
        if self._is_too_large or self._size > self._most_bytes:
            self._fail(AnswerTooLarge())
        elif self._is_complete:
            self._end()
        elif self._head_bytes > _MOST_HEAD_BYTES:
            place = "trailer" if self._size else "head"
            self._fail(httpx.RemoteProtocolError(f"the {place} is larger than {_MOST_HEAD_BYTES} bytes"))

    def _end(self) -> None:
        chunks, ended = self._chunks, self._take()
        answer = Answer(self._status, self._headers, chunks[0] if len(chunks) == 1 else b"".join(chunks))
        self._reset()
        if ended is not None:
            ended(answer)

    def _fail(self, error: Exception) -> None:
        ended = self._take()
        if ended is not None:
            self.abort()
            ended(error)

    def _take(self) -> Ended | None:
        """Who is to be told of the end; nobody after that."""
        ended, self._ended = self._ended, None
        if self._silence is not None:
            self._silence.end()
            self._silence = None
        return ended

    def _reset(self) -> None:
        self._status = self._size = self._head_bytes = 0
        self._headers: dict[bytes, bytes] = {}
        self._chunks: list[bytes] = []
        self._has_head = self._is_complete = self._ends_with_connection = self._is_too_large = False


def _announced(headers: dict[bytes, bytes]) -> int:
    """Bytes of the body; 0 where that is not told. The parser takes digits only."""
    return int(headers.get(b"content-length", b"0"))


def _tell(answer: asyncio.Future[Answer], ended: Answer | Exception) -> None:
    if answer.done():  # cancelled a moment ago
        return
    if isinstance(ended, Answer):
        answer.set_result(ended)
    else:
        answer.set_exception(ended)
