"""A file's bytes on their way out: whole or a range of them (RFC 9110), in bounded memory."""

import re
import unicodedata
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Annotated, NamedTuple
from urllib.parse import quote

from fastapi import Header, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import WithJsonSchema

from api.errors import ApiError
from api.heads import is_head
from batchwright.database.rows import FileRow
from batchwright.storage.base import Storage

_RANGE = re.compile(r"bytes=([0-9]{0,99})-([0-9]{0,99})", re.ASCII)
_UNSAFE = re.compile(r'[^\x20-\x7e]|["\\%]')
_PATH = re.compile(r"[/\\]")
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_TEXT = WithJsonSchema({"type": "string"})
_BINARY = "application/octet-stream"


class Span(NamedTuple):
    start: int
    length: int


async def content_response(request: Request, row: FileRow, storage: Storage) -> Response:
    """Raises ObjectMissing, or ApiError (416) where the range lies outside."""
    tag = f'"{row.id}"'  # a file never changes: its id stands for its bytes
    headers = {"ETag": tag, "Accept-Ranges": "bytes", "Cache-Control": "private, no-cache"}
    if not {tag, "*"}.isdisjoint(_tags(request.headers.get("if-none-match", ""))):
        return Response(status_code=304, headers=headers)
    span = _asked(request, tag, row.bytes)
    start, length = span or Span(0, row.bytes)
    headers["Content-Length"] = str(length)
    headers["Content-Disposition"] = _disposition(row.filename)
    if span is not None:
        headers["Content-Range"] = f"bytes {start}-{start + length - 1}/{row.bytes}"
    status = 200 if span is None else 206
    if is_head(request):
        await storage.stat(row.storage_key)
        return Response(None, status, headers, _BINARY)
    pieces = await _started(storage.read(row.storage_key, start, length))
    return StreamingResponse(pieces, status, headers, _BINARY)


async def conditional(
    range: Annotated[str | None, Header(description="one range of bytes"), _TEXT] = None,
    if_range: Annotated[str | None, Header(description="the range only of this ETag"), _TEXT] = None,
    if_none_match: Annotated[str | None, Header(description="ETags the client has"), _TEXT] = None,
) -> None:
    """A dependency that puts these headers into the OpenAPI description."""


def read_range(header: str, size: int) -> Span | None:
    """The bytes a Range header asks for of `size`; None where it is to be ignored: not one range of bytes.

    Raises:
        ValueError: it asks for none that exist.
    """
    match = _RANGE.fullmatch(header.strip())
    if match is None or match[0] == "bytes=-":
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
    return Span(start, end - start)


def _asked(request: Request, tag: str, size: int) -> Span | None:
    """The range of this request, if it has one for this version of the file."""
    header = request.headers.get("range")
    if header is None or request.headers.get("if-range", tag) != tag:
        return None
    try:
        return read_range(header, size)
    except ValueError:
        message = f"The requested range is outside the file, which has {size} bytes."
        raise ApiError(416, message, headers={"Content-Range": f"bytes */{size}"}) from None


async def _started(pieces: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
    """The same pieces, the first already read: an object that is missing shows before any header is sent."""
    first = await anext(pieces, b"")

    async def rest() -> AsyncGenerator[bytes]:
        yield first
        async for piece in pieces:
            yield piece

    return rest()


def _tags(header: str) -> set[str]:
    return {tag.strip().removeprefix("W/") for tag in header.split(",")}


def _disposition(filename: str) -> str:
    """RFC 6266: a name of plain ASCII, and the real one where it is another; never a path, never hidden.

    What turns the direction of text, or cannot be seen, could show another ending than the name has.
    """
    seen = "".join(letter for letter in filename if unicodedata.category(letter) not in _UNSEEN)
    name = _PATH.sub("_", seen).lstrip(". ") or "file"
    plain = _UNSAFE.sub("_", name)
    value = f'attachment; filename="{plain}"'
    return value if plain == name else f"{value}; filename*=UTF-8''{quote(name, safe='')}"
