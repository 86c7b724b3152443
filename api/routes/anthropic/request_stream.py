"""Reads the body that creates a message batch as a stream, and writes its requests as lines of an input file.

The body can have hundreds of megabytes, but is read one request at a time. If a request is too large, only
its beginning and its end are kept in memory, and the request becomes a line without a body. This line fails
when the batch runs. The other lines are not affected.
"""

import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from hashlib import sha256
from typing import NamedTuple

import msgspec

from batchwright.api.errors import ApiError, invalid_value, payload_too_large
from batchwright.api.services.files.multipart_form import FormField, FormFile, FormPiece
from batchwright.contracts.terms import Endpoint
from batchwright.rules.input.digest_set import DigestSet
from batchwright.rules.input.line_parser import DECODE_ERRORS, read_new_fields
from batchwright.rules.json_text import check_nesting, member_name, object_members, replace_lone_surrogates
from batchwright.settings import Settings

BODY = "body"  # name of the whole body in errors
_FILENAME = "messages.jsonl"
_BODILESS_LINE = b'{"custom_id":"%b","method":"POST","url":"' + Endpoint.MESSAGES.encode() + b'"}\n'
_LINE = _BODILESS_LINE[:-2] + b',"body":%b}\n'
MAX_ADDED_BYTES = len(_LINE)  # a line is at most so much longer than its request in the body
_CUSTOM_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_FIELDS = ("custom_id", "params")
_BREAKS = b"\r\n"
_SPACE = b" \t\r\n"
_MAX_OUTSIDE_BYTES = 4096  # limit for the text before the first request
_KEPT_BYTES = 1024  # kept at the beginning and at the end of a request that is too large
_WRITE_BYTES = 256 * 1024  # lines are written in pieces of about this size

_BEGIN = re.compile(rb'[ \t\r\n]*+\{[ \t\r\n]*+"requests"[ \t\r\n]*+:[ \t\r\n]*+\[')
_SPACES = re.compile(rb"[ \t\r\n]*+")
# The custom_id of a request over the limit, as its last or its first member.
_LAST_ID = re.compile(
    rb',[ \t\r\n]*+"custom_id"[ \t\r\n]*+:[ \t\r\n]*+("[a-zA-Z0-9_-]{1,64}")[ \t\r\n]*+\}\Z'
)
_FIRST_ID = re.compile(rb'\{[ \t\r\n]*+"custom_id"[ \t\r\n]*+:[ \t\r\n]*+("[a-zA-Z0-9_-]{1,64}")[ \t\r\n]*+,')
# Everything up to the next bracket, or up to a string that is not complete yet.
_TO_BRACKET = re.compile(rb'(?:[^"{}\[\]]++|"[^"\\]*+(?:\\.[^"\\]*+)*+")*+', re.DOTALL)
_TO_STRING_END = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
_QUOTE, _OPEN, _COMMA = ord('"'), b"{[", ord(",")
_OBJECT_START, _OBJECT_END, _ARRAY_END = ord("{"), ord("}"), ord("]")

_Members = dict[str, msgspec.Raw]
_MEMBERS = msgspec.json.Decoder(_Members)


class RequestLimits(NamedTuple):
    max_requests: int
    max_bytes: int
    max_line_bytes: int


def limits_of(settings: Settings) -> RequestLimits:
    return RequestLimits(
        settings.max_message_requests, settings.max_message_batch_bytes, settings.max_line_bytes
    )


class OversizedRequest(NamedTuple):
    """A request over the size limit. Only `custom_id` is kept, as JSON text with quotation marks."""

    custom_id: bytes


class RequestStream:
    """A reader of the requests in a message batch's body. `count` is the number of requests read so far."""

    def __init__(self, limits: RequestLimits) -> None:
        self.count = 0
        self._limits = limits
        self._digest = sha256()
        self._splitter = RequestSplitter(limits.max_line_bytes)
        self._ids = DigestSet()
        self._bytes = 0

    async def form(
        self, body: AsyncIterator[bytes], count: Callable[[int], None] = lambda size: None
    ) -> AsyncGenerator[FormPiece]:
        """Yield the requests as the parts of an upload form, so that they are stored like an uploaded file.

        Args:
            count: function that gets each change of the memory in use, in bytes; negative if it shrinks.

        Raises:
            ApiError: the body is not a list of requests, or a `custom_id` is missing, malformed or repeated
                (400). The body has too many bytes or requests (413). A request is too large, and neither the
                first nor the last field of the request is `custom_id` (413).
        """
        yield FormField("purpose", "batch")
        yield FormFile("file", _FILENAME)
        lines = bytearray()
        async for piece in body:
            self._bytes += len(piece)
            if self._bytes > self._limits.max_bytes:
                raise payload_too_large(self._limits.max_bytes, BODY)
            held = self._splitter.held_bytes
            for request in self._splitter.feed(piece):
                lines += self._line(request)
                if len(lines) >= _WRITE_BYTES:
                    self._digest.update(lines)
                    yield bytes(lines)
                    lines.clear()
            count(self._splitter.held_bytes - held)
        self._splitter.finish()
        if not self.count:
            raise invalid_value("requests", "requests: List should have at least 1 item.")
        self._digest.update(lines)
        yield bytes(lines)

    def fingerprint(self, version: str) -> str:
        """Return a digest of all requests and of the version of Anthropic's API in the request's header."""
        return sha256(self._digest.digest() + version.encode()).hexdigest()

    def _line(self, request: bytes | OversizedRequest) -> bytes:
        """Convert one request to a line of a batch's input file.

        Line breaks between the JSON tokens of `params` are removed. All other bytes of `params` are copied.
        A request that is too large becomes a line without a body.

        Raises:
            ApiError: the request is invalid, its `custom_id` is missing or repeated, or there are too many
                requests.
        """
        place = f"requests.{self.count}"
        most = self._limits.max_requests
        if self.count == most:
            message = f"requests: List should have at most {most} items. Split it into several batches."
            raise ApiError(413, message, param="requests")
        self.count += 1
        fields: Mapping[str, bytes]
        if isinstance(request, OversizedRequest):
            fields = {"custom_id": request.custom_id}
        else:
            fields = _read_request(request, place)
        custom_id = _custom_id(fields, place)
        if not self._ids.add(custom_id):
            param = f"{place}.custom_id"
            message = f"{param}: '{custom_id.decode()}' is repeated. It must be unique in the batch."
            raise invalid_value(param, message)
        if isinstance(request, OversizedRequest):
            return _BODILESS_LINE % custom_id
        if "params" not in fields:
            raise _missing(f"{place}.params")
        line = _LINE % (custom_id, fields["params"].translate(None, _BREAKS))
        if len(line) - 1 > self._limits.max_line_bytes:
            return _BODILESS_LINE % custom_id
        try:  # ingestion reads the line with the same function
            read_new_fields(line)
        except DECODE_ERRORS:
            param = f"{place}.params"
            raise ApiError(400, f"{param}: it is nested too deeply.", param=param) from None
        return line


class RequestSplitter:
    """A splitter of a body of the form `{"requests": [{...}, ...]}` into the objects of the list.

    It keeps at most one object in memory. It does not parse the objects, and looks for the `custom_id` only
    in an object that is too large.
    """

    def __init__(self, max_bytes: int) -> None:
        """Create a splitter. An object with more than `max_bytes` bytes is too large."""
        self._max = max_bytes
        self._buffer = bytearray()
        self._at = 0  # position in the buffer up to which it has been scanned
        self._dropped = 0  # bytes of the current object that are no longer in the buffer
        self._number = 0
        self._depth = 0  # brackets that are open in the current object; 0 between objects
        self._in_string = False
        self._state = self._begin

    @property
    def held_bytes(self) -> int:
        return len(self._buffer)

    def feed(self, piece: bytes) -> Iterator[bytes | OversizedRequest]:
        """Add `piece`, the next bytes of the body. Yield the objects that are now complete, as JSON. Before
        the caller calls `feed` again, it must read all of these objects.

        Raises:
            ApiError: the body does not have the expected form (400), or an object is too large and its
                `custom_id` was not found (413).
        """
        self._buffer += piece
        while (found := self._state()) is not None:
            if found:
                yield found

    def finish(self) -> None:
        """Check that the body is complete.

        Raises:
            ApiError: the body is incomplete (400).
        """
        if self._state != self._after_end:
            if self._state == self._begin:
                raise _wrong_body(bytes(self._buffer))
            raise _not_json("it ends before the list of requests does")

    # Each state returns None if it needs more bytes. Otherwise it returns an object, or no bytes if another
    # state follows.

    def _begin(self) -> bytes | None:
        found = _BEGIN.match(self._buffer)
        if found is None:
            if len(self._buffer) > _MAX_OUTSIDE_BYTES:
                raise _wrong_body(b"")
            return None
        self._drop(found.end())
        self._state = self._first
        return b""

    def _first(self) -> bytes | None:
        char = self._next_char()
        if char is None:
            return None
        self._state = self._after_list if char == _ARRAY_END else self._object
        self._drop(int(char == _ARRAY_END))
        return b""

    def _object(self) -> bytes | OversizedRequest | None:
        if not self._depth:
            char = self._next_char()
            if char is None:
                return None
            if char != _OBJECT_START:
                place = f"requests.{self._number}"
                raise ApiError(400, f"{place}: Input should be an object.", param=place)
        end = self._end_of_object()
        is_oversized = self._dropped + (len(self._buffer) if end is None else end) > self._max
        if end is None:
            if is_oversized:
                self._drop_middle()
            return None
        found = self._oversized(end) if is_oversized else bytes(memoryview(self._buffer)[:end])
        self._number, self._dropped = self._number + 1, 0
        self._state = self._after_object
        self._drop(end)
        return found

    def _drop_middle(self) -> None:
        """Free memory: drop the middle of the current object, and keep its beginning and its end."""
        middle = range(_KEPT_BYTES, self._at - _KEPT_BYTES)
        del self._buffer[middle.start : max(middle.start, middle.stop)]
        self._dropped += len(middle)
        self._at -= len(middle)

    def _oversized(self, end: int) -> OversizedRequest:
        last = _LAST_ID.search(self._buffer, max(0, end - _KEPT_BYTES), end)
        found = last or _FIRST_ID.match(self._buffer, 0, min(end, _KEPT_BYTES))
        if found is None:
            raise _too_large(f"requests.{self._number}", self._max)
        return OversizedRequest(found[1])

    def _end_of_object(self) -> int | None:
        """Return the position in the buffer after the current object; None if the object is incomplete."""
        buffer = self._buffer
        while True:
            if self._in_string:
                self._at = _end_of(_TO_STRING_END, buffer, self._at)
                if self._at >= len(buffer) or buffer[self._at] != _QUOTE:
                    return None  # the string goes on, or its last byte begins an escape
                self._at, self._in_string = self._at + 1, False
            self._at = _end_of(_TO_BRACKET, buffer, self._at)
            if self._at >= len(buffer):
                return None
            char = buffer[self._at]
            self._at += 1
            if char == _QUOTE:
                self._in_string = True
            else:
                self._depth += 1 if char in _OPEN else -1
                if not self._depth:
                    return self._at

    def _after_object(self) -> bytes | None:
        char = self._next_char()
        if char is None:
            return None
        if char not in (_COMMA, _ARRAY_END):
            raise _not_json(f"a comma or the end of the list must follow requests.{self._number - 1}")
        self._drop(1)
        self._state = self._object if char == _COMMA else self._after_list
        return b""

    def _after_list(self) -> bytes | None:
        char = self._next_char()
        if char is None:
            return None
        if char != _OBJECT_END:
            message = "The body must be an object with the field 'requests' and no other field after it."
            raise ApiError(400, message, param=BODY)
        self._drop(1)
        self._state = self._after_end
        return b""

    def _after_end(self) -> bytes | None:
        if self._next_char() is not None:
            raise _not_json("more text follows its end")
        return None

    def _next_char(self) -> int | None:
        """Skip white space. Return the next byte, which stays in the buffer; None if the buffer is empty."""
        self._drop(_end_of(_SPACES, self._buffer, 0))
        return self._buffer[0] if self._buffer else None

    def _drop(self, size: int) -> None:
        del self._buffer[:size]
        self._at = 0


def _end_of(pattern: re.Pattern[bytes], buffer: bytearray, at: int) -> int:
    found = pattern.match(buffer, at)
    return at if found is None else found.end()


def _read_request(request: bytes, place: str) -> dict[str, bytes]:
    """Return the fields of a request by name, each as JSON with exactly the bytes that the client sent.

    `place` names the request in error messages by its position in the body, such as `requests.0`.

    Raises:
        ApiError: the request is not JSON, or it has an unknown field.
    """
    try:
        check_nesting(request)
        if not request.isascii():
            request.decode()
        try:
            members = {name: bytes(value) for name, value in _MEMBERS.decode(request).items()}
        except msgspec.DecodeError:
            if (whole := replace_lone_surrogates(request)) is request:
                raise
            _MEMBERS.decode(whole)
            members = {
                member_name(member): request[member.start : member.end] for member in object_members(request)
            }
    except RecursionError:
        raise ApiError(400, f"{place}: it is nested too deeply.", param=place) from None
    except DECODE_ERRORS as error:
        raise _not_json(f"{place} is not valid: {error}") from None
    for name in members:
        if name not in _FIELDS:
            shown = name[:64].encode(errors="replace").decode()
            raise invalid_value(f"{place}.{shown}", f"{place}.{shown}: Extra inputs are not permitted.")
    return members


def _custom_id(fields: Mapping[str, bytes], place: str) -> bytes:
    param = f"{place}.custom_id"
    if "custom_id" not in fields:
        raise _missing(param)
    try:
        text = msgspec.json.decode(fields["custom_id"], type=str)
    except msgspec.DecodeError:
        raise invalid_value(param, f"{param}: Input should be a valid string.") from None
    if _CUSTOM_ID.fullmatch(text) is None:
        message = f"{param}: String should match pattern '^[a-zA-Z0-9_-]{{1,64}}$'."
        raise invalid_value(param, message)
    return text.encode()


def _wrong_body(body: bytes) -> ApiError:
    """Return the error for a body that does not begin with a list of requests."""
    try:
        fields = _MEMBERS.decode(body) if body else {}
    except msgspec.ValidationError:
        return ApiError(400, "The body must be an object.", param=BODY)
    except DECODE_ERRORS as error:
        return _not_json(str(error))
    if body and "requests" not in fields:
        return _missing("requests")
    if list(fields) == ["requests"]:
        return invalid_value("requests", "requests: Input should be a valid list.")
    return ApiError(
        400, "The body must be an object with the field 'requests' and no other field.", param=BODY
    )


def _missing(param: str) -> ApiError:
    return ApiError(400, f"{param}: Field required.", code="missing_required_parameter", param=param)


def _not_json(reason: str) -> ApiError:
    return ApiError(400, f"We could not parse the JSON body of your request: {reason}.")


def _too_large(place: str, max_bytes: int) -> ApiError:
    message = (
        f"{place}: a request may have at most {max_bytes} bytes. With its custom_id as its first or last "
        "member, it would fail alone."
    )
    return ApiError(413, message, param=place)
