"""Streaming parser of multipart/form-data (RFC 7578). It rejects an incomplete body."""

from collections.abc import AsyncGenerator, AsyncIterator
from email.message import Message
from typing import NamedTuple

from multipart import (  # pyright: ignore[reportMissingTypeStubs] - annotated, but not marked as typed
    MultipartError,
    MultipartSegment,
    PushMultipartParser,
)

from batchwright.api.errors import ApiError

_MAX_PARTS = 16
_MAX_FIELD_BYTES = 4096
_MAX_TYPE_CHARACTERS = 1024  # the time to parse the header grows with the square of its length


class FormField(NamedTuple):
    """A field of the form that is not a file, with its complete value."""

    name: str
    value: str


class FormFile(NamedTuple):
    """The start of a file in the form. The file's content follows as values of type bytes."""

    name: str
    filename: str


FormPiece = FormField | FormFile | bytes


async def read_multipart(
    content_type: str, body: AsyncIterator[bytes], file: str = "file"
) -> AsyncGenerator[FormPiece]:
    """Parse a multipart form. Yield in order: each field, the start of each file, and the content of each
    file in pieces of bytes.

    Args:
        content_type: Content-Type header of the request, which contains the boundary.
        body: bytes of the request's body, as they arrive.
        file: name of the part to treat as a file even if it has no file name.

    Raises:
        ApiError: the body is not a complete form, or a field is too long (400).
    """
    parser = PushMultipartParser(_boundary(content_type), max_segment_count=_MAX_PARTS)
    form = _FormParser(file)
    try:
        async for chunk in body:
            if not chunk or parser.closed:
                continue
            for event in parser.parse(chunk):
                piece = form.feed(event)
                if piece is not None:
                    yield piece
        parser.close()
    except MultipartError as error:
        why = error.args[0] if error.args else "it cannot be read"  # further arguments are not for clients
        raise ApiError(400, f"The body of this request is not a whole multipart form: {why}.") from None


class _FormParser:
    """A converter of the events of the multipart parser. Its results are complete fields, starts of files,
    and pieces of a file's content.
    """

    def __init__(self, file: str) -> None:
        self._file = file
        self._name: str | None = None  # name of the current field; None inside a file
        self._value = bytearray()

    def feed(self, event: MultipartSegment | bytes | bytearray | None) -> FormPiece | None:
        if isinstance(event, MultipartSegment):
            return self._start(event)
        if self._name is None:
            return None if event is None else bytes(event)
        if event is None:  # the end of the field
            field = FormField(self._name, self._value.decode(errors="replace"))
            self._name = None
            return field
        self._value += event
        if len(self._value) > _MAX_FIELD_BYTES:
            message = f"The form field '{self._name}' has over {_MAX_FIELD_BYTES} bytes."
            raise ApiError(400, message, param=self._name)
        return None

    def _start(self, segment: MultipartSegment) -> FormFile | None:
        name = segment.name or ""
        if segment.filename is not None or name == self._file:
            self._name = None
            return FormFile(name, segment.filename or "")
        self._name = name
        self._value.clear()
        return None


def _boundary(content_type: str) -> str:
    """Return the boundary in a Content-Type header.

    Raises:
        ApiError: the header names another media type or no usable boundary, or is too long.
    """
    if len(content_type) > _MAX_TYPE_CHARACTERS:
        raise _no_boundary()
    header = Message()
    header["Content-Type"] = content_type
    try:
        boundary = header.get_boundary("")
        boundary.encode()
    except UnicodeError:  # RFC 2231 lets clients name a character set, and not each can decode each value
        boundary = ""
    if header.get_content_type() != "multipart/form-data" or not 1 <= len(boundary) <= 256:
        raise _no_boundary()
    return boundary


def _no_boundary() -> ApiError:
    return ApiError(400, "The body of this request must be multipart/form-data with a boundary.")
