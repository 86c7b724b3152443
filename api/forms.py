"""multipart/form-data piece by piece (RFC 7578): memory is bounded whatever the body holds.

A body that is cut off, even right before its last boundary, is refused.
"""

from collections.abc import AsyncGenerator, AsyncIterator
from email.message import Message
from typing import NamedTuple

from multipart import (  # pyright: ignore[reportMissingTypeStubs] - annotated, but not marked as typed
    MultipartError,
    MultipartSegment,
    PushMultipartParser,
)

from api.errors import ApiError

_MAX_PARTS = 16
_MAX_FIELD_BYTES = 4096


class Field(NamedTuple):
    """A whole part that is no file."""

    name: str
    value: str


class FileStart(NamedTuple):
    """The bytes that follow, up to the next of another kind, are this file's."""

    name: str
    filename: str


Piece = Field | FileStart | bytes


async def read_form(
    content_type: str, body: AsyncIterator[bytes], file: str = "file"
) -> AsyncGenerator[Piece]:
    """The form's parts in their order; the one named `file` is a file also without a file name.

    Raises ApiError (400) where the body is no whole form.
    """
    parser = PushMultipartParser(_boundary(content_type), max_segment_count=_MAX_PARTS)
    parts = _Parts(file)
    try:
        async for chunk in body:
            if not chunk or parser.closed:
                continue
            for event in parser.parse(chunk):
                piece = parts.take(event)
                if piece is not None:
                    yield piece
        parser.close()
    except MultipartError as error:
        why = error.args[0] if error.args else "it cannot be read"  # what follows is for programmers
        raise ApiError(400, f"The body of this request is not a whole multipart form: {why}.") from None


class _Parts:
    """Gathers fields, passes files through."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._name: str | None = None  # of the field being gathered
        self._value = bytearray()

    def take(self, event: MultipartSegment | bytes | bytearray | None) -> Piece | None:
        if isinstance(event, MultipartSegment):
            return self._start(event)
        if self._name is None:
            return None if event is None else bytes(event)
        return self._end(self._name) if event is None else self._gather(event)

    def _start(self, segment: MultipartSegment) -> FileStart | None:
        name = segment.name or ""
        if segment.filename is not None or name == self._file:
            self._name = None
            return FileStart(name, segment.filename or "")
        self._name = name
        self._value.clear()
        return None

    def _gather(self, data: bytes | bytearray) -> None:
        self._value += data
        if len(self._value) > _MAX_FIELD_BYTES:
            message = f"The form field '{self._name}' has over {_MAX_FIELD_BYTES} bytes."
            raise ApiError(400, message, param=self._name)

    def _end(self, name: str) -> Field:
        self._name = None
        return Field(name, self._value.decode(errors="replace"))


def _boundary(content_type: str) -> str:
    header = Message()
    header["Content-Type"] = content_type
    boundary = header.get_boundary("")
    if header.get_content_type() != "multipart/form-data" or not 1 <= len(boundary) <= 256:
        raise ApiError(400, "The body of this request must be multipart/form-data with a boundary.")
    return boundary
