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

    Raises:
        ApiError: the body says itself that it is too large (413), or ends before its time (400).
    """
    async with aclosing(request.stream()) as body:
        try:
            _check_announced(request, limit, what)
            yield body
        except ClientDisconnect:
            raise ApiError(400, "The request ended before its body did.") from None
        except (ApiError, StorageError):
            await _discard(body)
            raise


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
