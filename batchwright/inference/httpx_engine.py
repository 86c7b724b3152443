"""The engine over any of httpx's transports: its own pool, or the mock of a test."""

import asyncio
from collections.abc import AsyncIterator

import httpx

from batchwright.inference.engine import Answer, AnswerTooLarge, Engine, Request


class HttpxEngine(Engine):
    def __init__(self, transport: httpx.AsyncBaseTransport, *, connect_seconds: float) -> None:
        self._transport = transport
        waits = {"connect": connect_seconds, "read": None, "write": None, "pool": connect_seconds}
        self._extensions = {"timeout": waits}
        self._under_way = 0
        self._is_retired = False

    async def exchange(self, request: Request, *, most_bytes: int, seconds: float) -> Answer:
        self._under_way += 1
        try:
            async with asyncio.timeout(seconds):
                return await self._exchange(request, most_bytes)
        finally:
            self._under_way -= 1
            await self._rest()

    async def _exchange(self, request: Request, most_bytes: int) -> Answer:
        beginning = asyncio.timeout(request.first_byte or None)
        try:
            async with beginning:
                answer = await self._transport.handle_async_request(self._as_httpx(request))
        except TimeoutError:
            if beginning.expired():
                seconds = f"{request.first_byte:g} s"
                raise TimeoutError(f"The backend did not begin to answer within {seconds}.") from None
            raise
        try:
            if int(answer.headers.get("content-length", "0")) > most_bytes:
                raise AnswerTooLarge
            body = await _read(answer, most_bytes, request.idle)
        finally:
            await answer.aclose()
        headers = {name.lower(): value for name, value in answer.headers.raw}
        return Answer(answer.status_code, headers, body)

    async def retire(self) -> None:
        self._is_retired = True
        await self._rest()

    async def _rest(self) -> None:
        """The transport has no word for it: what it keeps is closed whenever nothing is under way."""
        if self._is_retired and not self._under_way:
            await self._transport.aclose()

    async def aclose(self) -> None:
        await self._transport.aclose()

    def _as_httpx(self, request: Request) -> httpx.Request:
        """With a stream, not content: httpx then leaves the headers alone."""
        headers = [(b"host", request.target.authority), *request.fixed.headers, *request.headers]
        if request.body:
            headers.append((b"content-length", b"%d" % len(request.body)))
        return httpx.Request(
            request.method.decode(),
            request.target.url,
            headers=headers,
            stream=httpx.ByteStream(request.body),
            extensions=self._extensions,
        )


async def _read(answer: httpx.Response, most_bytes: int, idle: float) -> bytes:
    assert isinstance(answer.stream, httpx.AsyncByteStream)
    chunks: list[bytes] = []
    size = 0
    pieces = aiter(answer.stream)
    while (chunk := await _piece(pieces, idle)) is not None:
        size += len(chunk)
        if size > most_bytes:
            raise AnswerTooLarge
        chunks.append(chunk)
    return b"".join(chunks)


async def _piece(pieces: AsyncIterator[bytes], idle: float) -> bytes | None:
    """None at the end. Raises TimeoutError after `idle` seconds of silence; 0: never."""
    silence = asyncio.timeout(idle or None)
    try:
        async with silence:
            return await anext(pieces, None)
    except TimeoutError:
        if silence.expired():
            raise TimeoutError(
                f"The backend fell silent in the middle of its answer for {idle:g} s."
            ) from None
        raise
