"""Sends a file to a client in small pieces: the whole file or one byte range (RFC 9110).

A whole file can be compressed while it is sent.
"""

import re
import unicodedata
from typing import Annotated, NamedTuple
from urllib.parse import quote

from fastapi import Header, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import WithJsonSchema

from batchwright.api.errors import ApiError
from batchwright.api.services.compressed_response import accepted_compression, encoded, encoding_headers
from batchwright.database.records import FileRow
from batchwright.storage.base import Storage

_RANGE = re.compile(r"bytes=([0-9]{0,99})-([0-9]{0,99})", re.ASCII | re.IGNORECASE)
_UNSAFE = re.compile(r'[^\x20-\x7e]|["\\%]')
_PATH = re.compile(r"[/\\]")
_INVISIBLE_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_TEXT = WithJsonSchema({"type": "string"})
_BINARY = "application/octet-stream"


class ByteRange(NamedTuple):
    start: int
    length: int


async def file_response(request: Request, row: FileRow, storage: Storage, *, without_body: bool) -> Response:
    """Return the response to a download: the whole file, one byte range, or 304 if the client has the file.

    If the client accepts compression, a whole file is compressed while it is sent.

    Args:
        without_body: True for a HEAD request, for which the content is not read.

    Raises:
        ObjectMissing: the file's content is missing.
        ApiError: the range is outside the file (416).
    """
    plain_tag = f'"{row.id}"'  # a file never changes, so its id identifies its content
    # A range, and the size in the response to a HEAD request, are of the uncompressed file.
    is_plain = without_body or "range" in request.headers
    compression = None if is_plain else accepted_compression(request, row.bytes)
    tag = plain_tag if compression is None else f'"{row.id}-{compression.value}"'
    headers = {"ETag": tag, "Accept-Ranges": "bytes", "Cache-Control": "private, no-cache"}
    headers |= encoding_headers(compression)
    known = request.headers.get("if-none-match", "").split(",")
    if not {tag, plain_tag, "*"}.isdisjoint(each.strip().removeprefix("W/") for each in known):
        return Response(status_code=304, headers=headers)
    # RFC 9110 defines ranges for GET only.
    span = None if without_body else _requested_range(request, plain_tag, row.bytes)
    start, length = span or ByteRange(0, row.bytes)
    if compression is None:
        headers["Content-Length"] = str(length)
    headers["Content-Disposition"] = _disposition(row.filename)
    if span is not None:
        headers["Content-Range"] = f"bytes {start}-{start + length - 1}/{row.bytes}"
    status = 200 if span is None else 206
    if without_body:
        await storage.stat(row.storage_key)
        return Response(None, status, headers, _BINARY)
    pieces = storage.read(row.storage_key, start, length)
    first = await anext(pieces, b"")  # a missing object is noticed while an error response is still possible
    return StreamingResponse(encoded(first, pieces, compression), status, headers, _BINARY)


async def conditional_headers(
    range: Annotated[str | None, Header(description="one range of bytes"), _TEXT] = None,
    if_range: Annotated[str | None, Header(description="send the range only of this ETag"), _TEXT] = None,
    if_none_match: Annotated[str | None, Header(description="ETags the client has"), _TEXT] = None,
) -> None:
    """Do nothing. Routes declare this dependency only so that `/openapi.json` describes the headers."""


def parse_range(header: str, size: int) -> ByteRange | None:
    """Return the byte range that a Range header selects in a file of `size` bytes.

    Return None if the header does not contain exactly one valid byte range. The caller must then ignore the
    header (RFC 9110).

    Raises:
        ValueError: the range contains no byte of the file.
    """
    match = _RANGE.fullmatch(header.strip())
    if match is None or not any(match.groups()):
        return None
    first, last = match[1], match[2]
    if not first:
        start, end = max(size - int(last), 0), size
    else:
        if last and int(last) < int(first):
            return None
        start, end = int(first), min(int(last) + 1, size) if last else size
    if start >= end:
        raise ValueError(f"no bytes of {size} are in {header!r}")
    return ByteRange(start, end - start)


def _requested_range(request: Request, tag: str, size: int) -> ByteRange | None:
    """Return the byte range that the request selects; None if the whole file must be sent.

    Args:
        tag: ETag of the file. If the header If-Range contains another ETag, the range is ignored.

    Raises:
        ApiError: the range is outside the file (416).
    """
    header = request.headers.get("range")
    if header is None or request.headers.get("if-range", tag) != tag:
        return None
    try:
        return parse_range(header, size)
    except ValueError:
        message = f"The requested range is outside the file, which has {size} bytes."
        raise ApiError(416, message, headers={"Content-Range": f"bytes */{size}"}) from None


def _disposition(filename: str) -> str:
    """Return the value of the Content-Disposition header for a file name (RFC 6266).

    The value contains a name in plain ASCII. If the file name does not fit in plain ASCII, the value also
    contains the file name itself. In both names, characters that could deceive a person, such as path
    separators and changes of the text direction, are replaced or removed.
    """
    visible = "".join(
        letter for letter in filename if unicodedata.category(letter) not in _INVISIBLE_CATEGORIES
    )
    name = _PATH.sub("_", visible).lstrip(". ") or "file"
    plain = _UNSAFE.sub("_", name)
    value = f'attachment; filename="{plain}"'
    return value if plain == name else f"{value}; filename*=UTF-8''{quote(name, safe='')}"
