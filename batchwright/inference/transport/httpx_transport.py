"""Transport that sends requests through httpx: through its connection pool, or through a mock in tests."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from io import BytesIO
from itertools import count

import httpx

from batchwright.inference.transport.base import (
    BackendRequest,
    BackendResponse,
    ResponseTooLarge,
    StreamedResponse,
    Transport,
)

_CHUNKS_PER_TURN = 100  # chunks of one response until other tasks run: about 2 ms


class HttpxTransport(Transport):
    def __init__(self, transport: httpx.AsyncBaseTransport, *, connect_seconds: float) -> None:
        self._transport, self._connect_seconds = transport, connect_seconds
        self._in_flight = 0
        self._is_retired = False

    async def exchange(self, request: BackendRequest, *, max_bytes: int, seconds: float) -> BackendResponse:
        self._in_flight += 1
        try:
            async with asyncio.timeout(seconds):
                return await self._exchange(request, max_bytes, seconds)
        finally:
            self._in_flight -= 1
            await self._close_if_idle()

    @asynccontextmanager
    async def stream(
        self, request: BackendRequest, *, max_bytes: int, seconds: float
    ) -> AsyncGenerator[StreamedResponse]:
        self._in_flight += 1
        try:
            until = asyncio.get_running_loop().time() + seconds
            async with asyncio.timeout_at(until):
                response = await self._begin(request, seconds)
            try:
                pieces = _pieces(response, request.idle, until)
                yield StreamedResponse(response.status_code, _headers(response), pieces)
            finally:
                await response.aclose()
        finally:
            self._in_flight -= 1
            await self._close_if_idle()

    async def _begin(self, request: BackendRequest, seconds: float) -> httpx.Response:
        """Send a request, and return its response before the body is read."""
        beginning = asyncio.timeout(request.first_byte or None)
        try:
            async with beginning:
                return await self._transport.handle_async_request(self._to_httpx(request, seconds))
        except TimeoutError:
            if beginning.expired():
                limit = f"{request.first_byte:g} s"
                raise TimeoutError(f"The backend did not begin to answer within {limit}.") from None
            raise

    async def _exchange(self, request: BackendRequest, max_bytes: int, seconds: float) -> BackendResponse:
        response = await self._begin(request, seconds)
        try:
            if int(response.headers.get("content-length", "0")) > max_bytes:
                raise ResponseTooLarge
            body = await _read(response, max_bytes, request.idle)
        finally:
            await response.aclose()
        return BackendResponse(response.status_code, _headers(response), body)

    async def retire(self) -> None:
        self._is_retired = True
        await self._close_if_idle()

    async def _close_if_idle(self) -> None:
        """Close the transport if `retire` was called and no request is in flight."""
        if self._is_retired and not self._in_flight:
            await self._transport.aclose()

    async def aclose(self) -> None:
        await self._transport.aclose()

    def _to_httpx(self, request: BackendRequest, seconds: float) -> httpx.Request:
        """Convert a request to an httpx request.

        The connect timeout of the httpx request is always shorter than `seconds`. If connecting takes too
        long, httpx therefore raises a connect error, which shows that the request was never sent.
        """
        connect = min(self._connect_seconds, seconds * 0.9)
        waits = {"connect": connect, "read": None, "write": None, "pool": connect}
        headers = [(b"host", request.target.authority), *request.shared_headers.headers, *request.headers]
        if request.body:
            headers.append((b"content-length", b"%d" % len(request.body)))
        return httpx.Request(
            request.method.decode(),
            request.target.url,
            headers=headers,
            stream=httpx.ByteStream(request.body),
            extensions={"timeout": waits},
        )


def _headers(response: httpx.Response) -> dict[bytes, bytes]:
    return {name.lower(): value for name, value in response.headers.raw}


async def _pieces(response: httpx.Response, idle: float, until: float) -> AsyncIterator[bytes]:
    """Yield the pieces of a response's body.

    Args:
        idle: maximum number of seconds between two pieces; 0 for no limit.
        until: time of the event loop's clock at which the body must be complete.

    Raises:
        TimeoutError: a time limit was exceeded.
    """
    assert isinstance(response.stream, httpx.AsyncByteStream)
    chunks = aiter(response.stream)
    for number in count(1):
        async with asyncio.timeout_at(until):
            chunk = await _next_chunk(chunks, idle, number)
        if chunk is None:
            return
        yield chunk


async def _read(response: httpx.Response, max_bytes: int, idle: float) -> bytes:
    assert isinstance(response.stream, httpx.AsyncByteStream)
    body, size = BytesIO(), 0
    chunks, number = aiter(response.stream), count(1)
    while (chunk := await _next_chunk(chunks, idle, next(number))) is not None:
        size += len(chunk)
        if size > max_bytes:
            raise ResponseTooLarge
        body.write(chunk)
    return body.getvalue()


async def _next_chunk(chunks: AsyncIterator[bytes], idle: float, number: int) -> bytes | None:
    """Return the next chunk of the response; None at its end.

    Before every `_CHUNKS_PER_TURN`-th chunk, let other tasks run. Otherwise they could not run while httpx
    returns thousands of chunks that it has received together.

    Args:
        idle: maximum number of seconds until the chunk arrives; 0 for no limit.
        number: position of the chunk in the response, from 1.

    Raises:
        TimeoutError: no chunk arrived within `idle` seconds.
    """
    if number % _CHUNKS_PER_TURN == 0:
        await asyncio.sleep(0)
    silence = asyncio.timeout(idle or None)
    try:
        async with silence:
            return await anext(chunks, None)
    except TimeoutError:
        if silence.expired():
            raise TimeoutError(
                f"The backend sent nothing for {idle:g} s in the middle of its response."
            ) from None
        raise
