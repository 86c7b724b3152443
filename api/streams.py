"""Large bodies of requests: refused as soon as they say that they are too large, and politely."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager

from fastapi import Request
from starlette.requests import ClientDisconnect

from api.errors import ApiError
from api.receiving import too_large
from batchwright.storage.base import StorageError

_FORM_OVERHEAD_BYTES = 64 * 1024  # boundaries, headers and fields around the file
_DISCARDED_BYTES = 64 * 1024 * 1024
_DISCARDING_SECONDS = 10.0


@asynccontextmanager
async def streamed(request: Request, limit: int, what: str = "file") -> AsyncGenerator[AsyncIterator[bytes]]:
    """The body of a form around one file of at most `limit` bytes.

    A client that waits for a word before it sends it (Expect: 100-continue) is refused without that word.

    Raises:
        ApiError: the body says itself that it is too large (413), or ends before its time (400).
    """
    body = _Body(request)
    async with aclosing(body.pieces()) as pieces:
        try:
            _check_announced(request, limit, what)
            yield pieces
        except ClientDisconnect:
            raise ApiError(400, "The request ended before its body did.") from None
        except ApiError as error:
            if body.is_held_back:
                error.headers["Connection"] = "close"  # it may send the body all the same
            else:
                await _discard(pieces)
            raise
        except StorageError:
            await _discard(pieces)
            raise


class _Body:
    def __init__(self, request: Request) -> None:
        self._request = request
        self._is_asked_for = False

    @property
    def is_held_back(self) -> bool:
        """Whether the client sends it only once it is asked for, and it was not."""
        expected = self._request.headers.get("expect", "")
        return expected.lower() == "100-continue" and not self._is_asked_for

    async def pieces(self) -> AsyncGenerator[bytes]:
        self._is_asked_for = True
        async with aclosing(self._request.stream()) as stream:
            async for piece in stream:
                yield piece


def _check_announced(request: Request, limit: int, what: str) -> None:
    announced = request.headers.get("content-length", "")
    if announced.isascii() and announced.isdigit() and int(announced[:18]) > limit + _FORM_OVERHEAD_BYTES:
        raise too_large(limit, what)


async def _discard(body: AsyncIterator[bytes]) -> None:
    """Takes what a refused client still sends, within bounds: many read no answer before they sent all."""
    discarded = 0
    try:
        async with asyncio.timeout(_DISCARDING_SECONDS):
            async for piece in body:
                discarded += len(piece)
                if discarded > _DISCARDED_BYTES:
                    return
    except (ApiError, ClientDisconnect, TimeoutError):
        return
