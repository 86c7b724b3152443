"""Reads the body of a request, and rejects it as soon as it is larger than its limit.

Bodies with files are limited in `api/services/files/`.
"""

from collections.abc import Callable

from fastapi import Request
from starlette.requests import ClientDisconnect

from batchwright.api.errors import ApiError

MAX_BODY_BYTES = 1024 * 1024
_SCOPE_BODY = "batchwright.body"  # key of the body in the ASGI scope


async def read_body(
    request: Request, max_bytes: int = MAX_BODY_BYTES, count: Callable[[int], None] = lambda size: None
) -> bytes:
    """Return the body of a request. Later calls return the same body, because the audit log and the route
    both read it.

    Args:
        max_bytes: maximum size of the body in bytes.
        count: function that is called each time a part of the body arrives, with the part's number of bytes.
            It can raise ApiError to reject the body.

    Raises:
        ApiError: the body is too large (413), or the client closed the connection too early (400).
    """
    if _SCOPE_BODY in request.scope:
        read: bytes = request.scope[_SCOPE_BODY]
        return read
    body = bytearray()
    try:
        async for piece in request.stream():
            count(len(piece))
            body += piece
            if len(body) > max_bytes:
                raise ApiError(413, f"The body of this request may hold at most {max_bytes} bytes.")
    except ClientDisconnect:
        raise ApiError(400, "The request ended before its body did.") from None
    request.scope[_SCOPE_BODY] = bytes(body)
    return bytes(body)
