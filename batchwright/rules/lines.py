"""A batch's lines: cutting the input into them, and reading one.

Reading is lazy: msgspec checks the syntax of the whole line and keeps every value as a view of its bytes, so
that a line costs its own size in memory whatever is nested in it.
"""

from collections.abc import Iterator
from io import BytesIO
from typing import Annotated, NamedTuple

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

Value = Raw | UnsetType
BOM = b"\xef\xbb\xbf"


class LineDamaged(ValueError):
    """A stored line is not the request that ingestion accepted."""


class Line(Struct, frozen=True, gc=False):
    """A line of the input. `length` counts the newline, also where the last line lacks it."""

    number: int  # 1-based, blank lines counted
    offset: int
    length: int
    data: bytes | None  # without the newline, a carriage return included; None: longer than the limit


class Fields(Struct, gc=False):
    """What a line may say at its top; unknown keys are ignored, of equal keys the last counts."""

    custom_id: Value = UNSET
    method: Value = UNSET
    url: Value = UNSET
    body: Value = UNSET


class Prompting(Struct, gc=False):
    """What a request's body asks."""

    messages: Value = UNSET
    input: Value = UNSET
    prompt: Value = UNSET
    instructions: Value = UNSET
    tools: Value = UNSET


class Body(Prompting, gc=False):
    """The parts of a request's body that checks, plan and slices look at."""

    model: Value = UNSET
    stream: Value = UNSET
    max_tokens: Value = UNSET
    max_completion_tokens: Value = UNSET
    max_output_tokens: Value = UNSET


class _Accepted(Struct, gc=False):
    body: Body


class _Asked(Struct, gc=False):
    custom_id: str
    body: Raw


class ParsedLine(NamedTuple):
    """An accepted line: `url` is None where the batch's endpoint fills it in; `body` is byte-exact."""

    custom_id: str
    model: str | None
    url: str | None
    body: bytes


_FIELDS = msgspec.json.Decoder(Fields)
_BODY = msgspec.json.Decoder(Body)
_ACCEPTED, _ASKED = msgspec.json.Decoder(_Accepted), msgspec.json.Decoder(_Asked)
_ANY = msgspec.json.Decoder(Raw)
_TEXT = msgspec.json.Decoder(str)
_COUNT = msgspec.json.Decoder(Annotated[int, msgspec.Meta(ge=0, le=0xFFFF_FFFF)])
_NEWLINE = ord("\n")
_HARMLESS_NESTING = 200
_COUNTED = 16 * 1024  # bytes of a line in which looking for nesting costs less than going down
_SPARE_FRAMES = 200
# What msgspec raises for bytes that are no JSON; nesting beyond the interpreter's limit is refused as such.
UNREADABLE = (msgspec.MsgspecError, RecursionError, UnicodeError)


class Splitter:
    """Cuts pieces of a file into lines, in memory bounded by the longest line allowed.

    Lines end with a newline or a carriage return and a newline; blank ones and a byte order mark are skipped.
    """

    def __init__(self, max_line_bytes: int) -> None:
        self._max = max_line_bytes
        self._parts: list[bytes] = []
        self._held = 0  # bytes of the unfinished line, dropped ones included
        self._number = 0
        self._offset = 0
        self._start = b""  # the first bytes, until they can be told from a byte order mark
        self._started = False

    def feed(self, piece: bytes) -> Iterator[Line]:
        """The lines that end in `piece`; all must be taken before the next piece."""
        if not self._started:
            piece = self._skip_mark(piece)
        for part in BytesIO(piece):
            if part[-1] != _NEWLINE:
                self._hold(part)
                return
            line = self._end_line(part[:-1])
            if line is not None:
                yield line

    def finish(self) -> Iterator[Line]:
        """The last line, where no newline ends it."""
        if not self._started:
            self._started = True
            self._hold(self._start)
        if self._held:
            line = self._end_line(b"")
            if line is not None:
                yield line

    def _skip_mark(self, piece: bytes) -> bytes:
        piece = self._start + piece
        if len(piece) < len(BOM) and BOM.startswith(piece):
            self._start = piece
            return b""
        self._started = True
        self._start = b""
        if not piece.startswith(BOM):
            return piece
        self._offset = len(BOM)
        return piece[len(BOM) :]

    def _hold(self, part: bytes) -> None:
        self._held += len(part)
        if self._held > self._max:
            self._parts.clear()
        elif part:
            self._parts.append(part)

    def _end_line(self, part: bytes) -> Line | None:
        if self._held:
            self._hold(part)
            size, data = self._held, b"".join(self._parts)
            self._parts.clear()
            self._held = 0
        else:
            size, data = len(part), part
        self._number += 1
        offset = self._offset
        self._offset += size + 1
        if size > self._max:
            return Line(self._number, offset, size + 1, None)
        if not data or data.isspace():
            return None
        return Line(self._number, offset, size + 1, data)


def read_fields(line: bytes) -> Fields:
    """Raises one of UNREADABLE; msgspec.ValidationError among them where the line is no object."""
    if not line.isascii():
        line.decode()
    return _FIELDS.decode(line)


def read_new_fields(line: bytes) -> Fields:
    """read_fields for a line seen for the first time.

    The interpreter limits nesting by what is left of its stack: with less of it here than anywhere else, what
    is accepted can always be read again.
    """
    if len(line) <= _COUNTED and line.count(b"[") + line.count(b"{") < _HARMLESS_NESTING:
        return read_fields(line)
    return _read_deep_down(line, _SPARE_FRAMES)


def _read_deep_down(line: bytes, frames: int) -> Fields:
    return _read_deep_down(line, frames - 1) if frames else read_fields(line)


def read_body(body: Raw) -> Body:
    """Raises msgspec.ValidationError where the value is no object."""
    return _BODY.decode(body)


def read_body_again(line: bytes) -> Body:
    """The body of a line that was accepted before. Raises LineDamaged."""
    try:
        return _ACCEPTED.decode(line).body
    except msgspec.ValidationError:  # of two bodies the last counts, whatever the first one is
        body = read_fields(line).body
        if body is UNSET:
            raise LineDamaged("the line has lost its body") from None
        return read_body(body)


def read_text(value: Value) -> str | None:
    """The string a value is; None where it is absent or something else."""
    if value is UNSET:
        return None
    try:
        return _TEXT.decode(value)
    except UNREADABLE:
        return None


def read_count(value: Value) -> int | None:
    """The number of at most 32 bits a value is; None where it is absent or something else."""
    if value is UNSET:
        return None
    try:
        return _COUNT.decode(value)
    except UNREADABLE:
        return None


def is_json(line: bytes) -> bool:
    try:
        _ANY.decode(line)
    except UNREADABLE:
        return False
    return True


def raw_bytes(value: Value) -> bytes:
    """The value's bytes as they stand in the line; none where it is absent."""
    return b"" if value is UNSET else bytes(value)


def written(value: Value) -> int:
    """How many bytes the value has in the line; none where it is absent."""
    return 0 if value is UNSET else len(memoryview(value))


def prompt_bytes(body: Prompting) -> int:
    """How many bytes the prompt has in the line."""
    size = 0
    if body.messages is not UNSET:
        size += len(memoryview(body.messages))
    if body.input is not UNSET:
        size += len(memoryview(body.input))
    if body.prompt is not UNSET:
        size += len(memoryview(body.prompt))
    return size


def read_request(line: bytes) -> tuple[str, bytes]:
    """custom_id and body of a line that ingestion accepted, for whoever sends it.

    Raises:
        LineDamaged: these bytes are no such line.
    """
    try:
        if not line.isascii():
            line.decode()
        asked = _ASKED.decode(line)
    except UNREADABLE:  # of equal keys one may be of another type
        return _read_carefully(line)
    body = bytes(asked.body)
    return (asked.custom_id, body) if body.startswith(b"{") else _read_carefully(line)


def _read_carefully(line: bytes) -> tuple[str, bytes]:
    try:
        fields = read_fields(line)
        custom_id = read_text(fields.custom_id)
    except UNREADABLE as error:
        raise LineDamaged(f"the line is not JSON: {error}") from error
    body = raw_bytes(fields.body)
    if custom_id is None or not body.startswith(b"{"):
        raise LineDamaged("the line has no custom_id or no body")
    return custom_id, body


def parse_line(line: bytes) -> ParsedLine:
    """A line that ingestion accepted.

    Raises:
        LineDamaged: these bytes are no such line.
    """
    try:
        fields = read_fields(line)
        custom_id = read_text(fields.custom_id)
        if custom_id is None or fields.body is UNSET:
            raise LineDamaged("the line has no custom_id or no body")
        model = read_text(read_body(fields.body).model)
        return ParsedLine(custom_id, model, read_text(fields.url), bytes(fields.body))
    except UNREADABLE as error:
        raise LineDamaged(f"the line is not JSON: {error}") from error
