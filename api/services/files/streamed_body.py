"""Streams large request bodies. A body that is too large is rejected before it has arrived completely."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager

from fastapi import Request
from starlette.requests import ClientDisconnect

from batchwright.api.errors import ApiError, payload_too_large
from batchwright.storage.base import StorageError

_FORM_OVERHEAD_BYTES = 64 * 1024  # boundaries, headers and fields in addition to the file
_MAX_DISCARDED_BYTES = 64 * 1024 * 1024
_MAX_DISCARD_SECONDS = 10.0


@asynccontextmanager
async def stream_body(
    request: Request, limit: int, what: str = "file"
) -> AsyncGenerator[AsyncIterator[bytes]]:
    """Context manager that yields the body of an upload, as it arrives. The file may have at most `limit`
    bytes.

    If the `with` block rejects the body with an error, the rest of the body is read and dropped before the
    error is raised. Many clients read the response only after they have sent the whole body. If the client
    still waits for `100 Continue`, it has not sent the body, and the error is raised immediately.

    Args:
        limit: maximum size of the file in bytes.
        what: name of the uploaded object, for error messages.

    Raises:
        ApiError: the announced size is too large (413), or the body ends too early (400).
    """
    body = _UploadBodyStream(request)
    async with aclosing(body.pieces()) as pieces:
        try:
            announced = request.headers.get("content-length", "")
            is_number = announced.isascii() and announced.isdigit()
            if is_number and int(announced[:18]) > limit + _FORM_OVERHEAD_BYTES:
                raise payload_too_large(limit, what)
            yield pieces
        except ClientDisconnect:
            raise ApiError(400, "The request ended before its body did.") from None
        except ApiError as error:
            if body.is_held_back:
                error.headers["Connection"] = "close"  # the client may still send the body
            else:
                await _discard(pieces)
            raise
        except StorageError:
            await _discard(pieces)
            raise


class _UploadBodyStream:
    def __init__(self, request: Request) -> None:
        self._request = request
        self._is_read = False

    @property
    def is_held_back(self) -> bool:
        """True if the client has not sent the body yet because it waits for `100 Continue`."""
        expected = self._request.headers.get("expect", "")
        return expected.lower() == "100-continue" and not self._is_read

    async def pieces(self) -> AsyncGenerator[bytes]:
        self._is_read = True
        async with aclosing(self._request.stream()) as stream:
            async for piece in stream:
                yield piece


async def _discard(body: AsyncIterator[bytes]) -> None:
    """Read and drop the rest of a rejected body. Stop after a maximum number of bytes or a maximum time."""
    discarded = 0
    try:
        async with asyncio.timeout(_MAX_DISCARD_SECONDS):
            async for piece in body:
                discarded += len(piece)
                if discarded > _MAX_DISCARDED_BYTES:
                    return
    except (ApiError, ClientDisconnect, TimeoutError):
        return
