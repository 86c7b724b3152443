"""One HTTP/1.1 connection: a request out, its answer parsed by llhttp, one exchange at a time."""

import asyncio

import httptools
import httpx

from batchwright.inference.engine import Answer, AnswerTooLarge

_MOST_HEAD_BYTES = 64 * 1024
_NO_BODY = (204, 304)


class Connection(asyncio.Protocol):
    """Of an engine's pool. After an exchange it says whether it `is_reusable`; any error closes it."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._answer: asyncio.Future[Answer] | None = None
        self._most_bytes = 0
        self._is_kept = True
        self._reset()

    @property
    def is_reusable(self) -> bool:
        return self._transport is not None and self._is_kept and self._answer is None

    async def exchange(self, head: bytes, body: bytes, most_bytes: int) -> Answer:
        """Raises httpx.ReadError, RemoteProtocolError, AnswerTooLarge, TimeoutError; cancelled, it closes."""
        if self._transport is None:
            raise httpx.ReadError("Server disconnected")
        self._most_bytes = most_bytes
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.writelines((head, body))
        try:
            return await self._answer
        except BaseException:
            self.abort()
            raise
        finally:
            self._answer = None

    def overdue(self) -> None:
        """The exchange has had its time: it raises TimeoutError."""
        self._fail(TimeoutError())

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    # What the event loop tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclass of asyncio's, so that isinstance cannot tell.
        self._transport = transport  # pyright: ignore[reportAttributeAccessIssue]

    def data_received(self, data: bytes) -> None:
        if self._answer is None or self._answer.done():
            self.abort()  # nothing was asked
            return
        if not self._has_head:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fail(httpx.RemoteProtocolError("the backend switches to another protocol"))
        except httptools.HttpParserError as error:
            # An answer that is whole stays whole, whatever follows it.
            self._is_kept = False
            if not self._is_complete:
                self._fail(httpx.RemoteProtocolError(str(error) or type(error).__name__))
        self._judge()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._answer is None or self._answer.done():
            return
        if exc is None and self._ends_with_connection:
            self._answer.set_result(self._whole())
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
        if self._answer is None or self._answer.done():
            return
        if self._size > self._most_bytes:
            self._fail(AnswerTooLarge())
        elif self._is_complete:
            self._answer.set_result(self._whole())
        elif not self._has_head and self._head_bytes > _MOST_HEAD_BYTES:
            self._fail(httpx.RemoteProtocolError(f"the head is larger than {_MOST_HEAD_BYTES} bytes"))

    def _whole(self) -> Answer:
        chunks = self._chunks
        answer = Answer(self._status, self._headers, chunks[0] if len(chunks) == 1 else b"".join(chunks))
        self._reset()
        return answer

    def _fail(self, error: Exception) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)

    def _reset(self) -> None:
        self._status = self._size = self._head_bytes = 0
        self._headers: dict[bytes, bytes] = {}
        self._chunks: list[bytes] = []
        self._has_head = self._is_complete = self._ends_with_connection = False
