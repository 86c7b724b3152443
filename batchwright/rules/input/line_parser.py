"""Read the fields of a line of a batch's input. `line_rules` decides whether they are accepted.

Parsing is lazy: msgspec checks the syntax of the line, but copies no values. Each value refers to its bytes
in the line. Therefore a parsed line needs little more memory than its bytes.

msgspec rejects lone surrogates (halves of a UTF-16 pair). If a line contains lone surrogates, they are
replaced by U+FFFD, and the line is parsed a second time. The values of `RequestBody` can contain these
U+FFFD. The values of `LineFields` never contain them: they are the original bytes of the line.

`fast_parse` reads usual lines in one pass. The other functions are slower, and can read all lines.
"""

import json
from collections.abc import Sequence
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from batchwright.rules.input.line_splitter import InputLine
from batchwright.rules.json_text import (
    check_nesting,
    member_name,
    object_members,
    replace_lone_surrogates,
)

RawValue = Raw | UnsetType


class LineDamaged(ValueError):
    """Raised if a stored line has been damaged since the line was validated. A retry does not help."""


class LineFields(Struct, gc=False):
    """The top-level fields of a line, as raw JSON (not parsed). Unknown keys are ignored.

    If a key is repeated, its last value is used.
    """

    custom_id: RawValue = UNSET
    method: RawValue = UNSET
    url: RawValue = UNSET
    body: RawValue = UNSET


class PromptFields(Struct, gc=False):
    """The fields of a request's body that hold the prompt, for any endpoint, as raw JSON (not parsed)."""

    messages: RawValue = UNSET
    input: RawValue = UNSET
    prompt: RawValue = UNSET
    instructions: RawValue = UNSET
    system: RawValue = UNSET
    tools: RawValue = UNSET
    # Score and rerank
    query: RawValue = UNSET
    documents: RawValue = UNSET
    text_1: RawValue = UNSET
    text_2: RawValue = UNSET


class RequestBody(PromptFields, gc=False):
    """All fields of a request's body that are read before the request is sent, as raw JSON (not parsed).

    The fields are read to validate the line, and to plan the order in which lines are sent.
    """

    model: RawValue = UNSET
    stream: RawValue = UNSET
    max_tokens: RawValue = UNSET
    max_completion_tokens: RawValue = UNSET
    max_output_tokens: RawValue = UNSET
    n: RawValue = UNSET
    best_of: RawValue = UNSET


class _AcceptedBody(Struct, gc=False):
    body: RequestBody


class _IdAndBody(Struct, gc=False):
    custom_id: str
    body: Raw


class ParsedLine(NamedTuple):
    """The fields of a line that has passed ingestion (the validation of the input).

    `body` contains the original bytes of the line. If the line has no URL, `url` is None, and the request is
    sent to the endpoint of the batch.
    """

    custom_id: str
    model: str | None
    url: str | None
    body: bytes


_FIELDS = msgspec.json.Decoder(LineFields)
_BODY = msgspec.json.Decoder(RequestBody)
_ACCEPTED, _ID_AND_BODY = msgspec.json.Decoder(_AcceptedBody), msgspec.json.Decoder(_IdAndBody)
_ANY = msgspec.json.Decoder(Raw)
_TEXT = msgspec.json.Decoder(str)
_COUNT = msgspec.json.Decoder(Annotated[int, msgspec.Meta(ge=0, le=0xFFFF_FFFF)])
_LIST = msgspec.json.Decoder(list[Raw])
_REPLACEMENT = rb"\ufffd"  # `replace_lone_surrogates` writes it
# Errors for bytes that are not JSON, or that are nested too deeply.
DECODE_ERRORS = (msgspec.MsgspecError, RecursionError, UnicodeError)


def read_fields(line: bytes) -> LineFields:
    """Return the top-level fields of a line.

    Raises:
        msgspec.ValidationError: the line is JSON but not an object.
        DECODE_ERRORS: the line is not JSON, or is nested too deeply.
    """
    if not line.isascii():
        line.decode()
    try:
        return _FIELDS.decode(line)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        whole = replace_lone_surrogates(line)
        if whole is line:
            raise
        return _as_written(_FIELDS.decode(whole), line, whole)


def _as_written(fields: LineFields, line: bytes, whole: bytes) -> LineFields:
    """Replace the value of each field in `fields` by the original bytes of `line`. Return `fields`.

    The values were parsed from `whole`, so they can contain U+FFFD instead of lone surrogates (halves of a
    UTF-16 pair).

    Args:
        fields: fields that were decoded from `whole`.
        line: the line as the client wrote it.
        whole: a copy of `line`, of the same length, in which U+FFFD replaces each lone surrogate.
    """
    for name in LineFields.__struct_fields__:
        value = raw_bytes(getattr(fields, name))
        if _REPLACEMENT not in value:
            continue
        start = whole.find(value)
        if whole.find(value, start + 1) >= 0:  # the value occurs twice, so its position is uncertain
            start = max(member.start for member in object_members(line) if member_name(member) == name)
        setattr(fields, name, Raw(line[start : start + len(value)]))
    return fields


def read_new_fields(line: bytes) -> LineFields:
    """Return the top-level fields of a line that was not accepted yet.

    This function also rejects a line that is nested too deeply, because some JSON parsers could not read the
    line later.

    Raises:
        msgspec.ValidationError: the line is JSON but not an object.
        DECODE_ERRORS: the line is not JSON, or is nested too deeply.
    """
    check_nesting(line)
    return read_fields(line)


def read_body(body: Raw) -> RequestBody:
    """Return the fields of a request's body.

    Raises:
        msgspec.ValidationError: the value is not an object.
    """
    try:
        return _BODY.decode(body)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        return _BODY.decode(replace_lone_surrogates(bytes(body)))


def reread_body(line: bytes) -> RequestBody:
    """Return the fields of the request's body in a line that was accepted before.

    Raises:
        LineDamaged: the line has no body.
        DECODE_ERRORS: the line is not JSON, or is nested too deeply.
    """
    try:
        return _ACCEPTED.decode(line).body
    except msgspec.DecodeError:  # a lone surrogate, or two bodies, the last of which counts
        body = read_fields(line).body
        if body is UNSET:
            raise LineDamaged("the line has lost its body") from None
        return read_body(body)


def read_text(value: RawValue) -> str | None:
    """Convert a raw JSON value to a string; None if it is missing or not a string.

    Lone surrogates (halves of a UTF-16 pair) stay in the string.
    """
    if value is UNSET:
        return None
    try:
        return _TEXT.decode(value)
    except DECODE_ERRORS:
        text = bytes(value)
        return (
            str(json.loads(text))
            if text.startswith(b'"') and replace_lone_surrogates(text) is not text
            else None
        )


def read_count(value: RawValue) -> int | None:
    """Convert a raw JSON value to an integer. Return None if it is not an integer from 0 to 2**32 - 1."""
    if value is UNSET:
        return None
    try:
        return _COUNT.decode(value)
    except DECODE_ERRORS:
        return None


def read_items(value: RawValue) -> list[Raw] | None:
    """Return the items of a raw JSON list; None if the value is missing or not a list."""
    if value is UNSET:
        return None
    try:
        return _LIST.decode(value)
    except DECODE_ERRORS:
        return None


def has_json_syntax(line: bytes) -> bool:
    """Return True if the line is JSON. Its strings may contain bytes that are not valid UTF-8."""
    try:
        _ANY.decode(line)
    except msgspec.DecodeError:
        whole = replace_lone_surrogates(line)
        return whole is not line and has_json_syntax(whole)
    except DECODE_ERRORS:
        return False
    return True


def raw_bytes(value: RawValue) -> bytes:
    """Return the bytes of a raw JSON value as they are in the line; empty if the value is missing."""
    return b"" if value is UNSET else bytes(value)


def read_request(line: bytes) -> tuple[str, bytes]:
    """Return `custom_id` and body of a stored line that has passed ingestion (the validation of the input).

    This is faster than `parse_line`. The body contains the original bytes of the line.

    Raises:
        LineDamaged: the line is not JSON, or has no `custom_id` or no body, because its stored bytes were
            damaged after the validation.
    """
    try:
        if not line.isascii():
            line.decode()
        request = _ID_AND_BODY.decode(line)
    except DECODE_ERRORS:  # if a key is repeated, one of its values may have another type
        return _read_request_strictly(line)
    body = bytes(request.body)
    return (request.custom_id, body) if body.startswith(b"{") else _read_request_strictly(line)


def _read_request_strictly(line: bytes) -> tuple[str, bytes]:
    try:
        fields = read_fields(line)
        custom_id = read_text(fields.custom_id)
    except DECODE_ERRORS as error:
        raise LineDamaged(f"the line is not JSON: {error}") from error
    body = raw_bytes(fields.body)
    if custom_id is None or not body.startswith(b"{"):
        raise LineDamaged("the line has no custom_id or no body")
    return custom_id, body


def parse_line(line: bytes) -> ParsedLine:
    """Return all fields of a stored line that has passed ingestion (the validation of the input).

    Raises:
        LineDamaged: the line is not JSON, or has no `custom_id` or no body, because its stored bytes were
            damaged after the validation.
    """
    try:
        fields = read_fields(line)
        custom_id = read_text(fields.custom_id)
        if custom_id is None or fields.body is UNSET:
            raise LineDamaged("the line has no custom_id or no body")
        model = read_text(read_body(fields.body).model)
        return ParsedLine(custom_id, model, read_text(fields.url), bytes(fields.body))
    except DECODE_ERRORS as error:
        raise LineDamaged(f"the line is not JSON: {error}") from error


_NonEmptyText = Annotated[str, msgspec.Meta(min_length=1)]
_OptionalCount = Annotated[int, msgspec.Meta(ge=0, le=0xFFFF_FFFF)] | UnsetType | None


class FastBody(PromptFields, gc=False):
    """The body of a line that `fast_parse` could read.

    All fields that Batchwright checks have the right types.
    """

    model: _NonEmptyText | UnsetType = UNSET
    stream: bool | UnsetType | None = UNSET
    max_tokens: _OptionalCount = UNSET
    max_completion_tokens: _OptionalCount = UNSET
    max_output_tokens: _OptionalCount = UNSET
    n: RawValue = UNSET
    best_of: RawValue = UNSET


class FastLine(Struct, gc=False):
    """A line that `fast_parse` could read. If a key is repeated, its last value is used."""

    custom_id: _NonEmptyText
    body: FastBody
    method: Literal["POST"] | UnsetType = UNSET
    url: str | UnsetType = UNSET


_FAST_LINE = msgspec.json.Decoder(FastLine)


def fast_parse(lines: Sequence[InputLine]) -> list[FastLine | None]:
    """Parse many lines quickly. Return one result for each line.

    A result is None if the line is unusual or invalid. The caller must then read this line with the slower
    functions of this module, which check it exactly.
    """
    return [_fast_parse_line(line.data) for line in lines]


def _fast_parse_line(line: bytes | None) -> FastLine | None:
    if line is None:
        return None
    try:
        check_nesting(line)
        if not line.isascii():
            line.decode()
        return _FAST_LINE.decode(line)
    except DECODE_ERRORS:
        return None
