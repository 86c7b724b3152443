"""Write and read segments. A segment is an immutable object with the results and attempts of a slice's lines.

records   for each record its header, the CRC of header and payload, and the payload
footer    one index entry per record
trailer   position, number of entries and CRC of the footer, and a magic number

To read all records, pass the whole object (at most a few MiB plus one response) to `walk_records`. To read
single records, pass the end of the object to `read_tail`. Then read the bytes of each wanted record and pass
them to `record_payload`.
"""

import struct
import zlib
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

from msgspec import Struct

from batchwright.rules.results.token_usage import NO_TOKENS, TokenUsage

_MAGIC = b"BWSEG001"
_HEADER = struct.Struct("<BBHqIIIII")  # kind, flags, spare, offset, length, 4 x usage
_CRC = struct.Struct("<I")
_CHECKED = struct.Struct(_HEADER.format + "I")  # a header with the CRC after it
_INDEX = struct.Struct("<BBHqIQ")  # kind, flags, spare, offset, length, position of the payload
_TRAILER = struct.Struct("<QII8s")
_TOKENS = struct.Struct("<4I")  # the end of the header
SUCCESS_FLAG, FINAL_FLAG = 1, 2
TOKENS_BYTES = _TOKENS.size + _CRC.size  # immediately before a payload
HEAD_BYTES = _CHECKED.size  # from the beginning of a record to its payload
TRAILER_BYTES = _TRAILER.size

# Kind, flags, offset in the input, position and length of the payload, and the four token counts.
RawRecord = tuple[int, int, int, int, int, int, int, int, int]


class SegmentDamaged(ValueError):
    """Raised if a segment (a stored object with many results) is incomplete or damaged.

    A retry does not help.
    """


class RecordKind(IntEnum):
    """The kind of a record in a segment: the result of a line, a failed attempt, or a running job.

    A job is a request that a backend answers later. The numbers are stored in segments, so they must not
    change.
    """

    SETTLED = 1  # payload: the line of the output or error file, without a newline
    ATTEMPT = 2  # payload: JSON {"count", "not_before" (Unix seconds), "error"}
    SUBMITTED = 3  # payload: as for ATTEMPT, with the running "job" {"id", "upstream", "since"}


class SegmentRecord(Struct, frozen=True, order=True):
    """One record of a segment (a stored object with many results). It is about one line.

    `RecordKind` describes the payload of each kind of record.

    Attributes:
        offset: position of the line in the input, in bytes.
        success: for a result, True if it belongs in the output file, False if it belongs in the error file.
        usage: tokens that the backend has reported for a result.
        final: True if the record is the line's dead letter, which describes the failure of its last attempt.
    """

    kind: RecordKind
    offset: int
    payload: bytes
    success: bool = False
    usage: TokenUsage = NO_TOKENS
    final: bool = False


class RecordLocation(NamedTuple):
    """The position of one record in its segment (a stored object with many results).

    Attributes:
        success: for a result, True if it belongs in the output file.
        offset: position of the record's line in the input, in bytes.
        position: start of the record's payload in the segment, in bytes.
        length: length of the payload, in bytes.
        tokens: number of input, cached, output and reasoning tokens.
        final: True if the record is the line's dead letter, which describes the failure of its last attempt.
    """

    kind: int
    success: bool
    offset: int
    position: int
    length: int
    tokens: tuple[int, int, int, int]
    final: bool


class IndexEntry(NamedTuple):
    """The location of one record in a segment, as it is listed at the end of the segment.

    Attributes:
        success: for a result, True if it belongs in the output file.
        offset: position of the record's line in the input, in bytes.
        length: length of the record's payload, in bytes.
        position: start of the payload in the segment, in bytes.
    """

    kind: RecordKind
    success: bool
    offset: int
    length: int
    position: int


class SegmentWriter:
    """A collection of results and records of attempts. `finish` returns them as the bytes of one segment."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._index: list[bytes] = []

    def __len__(self) -> int:
        return len(self._index)

    @property
    def size(self) -> int:
        return len(self._data)

    def add(self, record: SegmentRecord) -> None:
        kind, offset, payload, usage = record.kind, record.offset, record.payload, record.usage
        flags, length = record.success * SUCCESS_FLAG | record.final * FINAL_FLAG, len(payload)
        tokens = usage.input_tokens, usage.cached_tokens, usage.output_tokens, usage.reasoning_tokens
        try:
            header = _HEADER.pack(kind, flags, 0, offset, length, *tokens)
        except struct.error:  # a token count is too large or negative
            header = _HEADER.pack(kind, flags, 0, offset, length, *map(_u32, tokens))
        data = self._data
        data += header
        data += _CRC.pack(zlib.crc32(payload, zlib.crc32(header)))
        self._index.append(_INDEX.pack(kind, flags, 0, offset, length, len(data)))
        data += payload

    def copy(self, data: bytes, place: RecordLocation) -> None:
        """Copy a record of another segment unchanged into this one.

        Args:
            data: the other segment.
            place: location of the record in the other segment.
        """
        flags = place.success * SUCCESS_FLAG | place.final * FINAL_FLAG
        end, head = place.position + place.length, _HEADER.size + _CRC.size
        position = len(self._data) + head
        self._index.append(_INDEX.pack(place.kind, flags, 0, place.offset, place.length, position))
        self._data += memoryview(data)[place.position - head : end]

    def finish(self) -> bytes:
        footer = b"".join(self._index)
        trailer = _TRAILER.pack(len(self._data), len(self._index), zlib.crc32(footer), _MAGIC)
        return bytes(self._data) + footer + trailer


def tail_bytes(trailer: bytes) -> int:
    """Return how many bytes at the end of a segment `read_tail` needs.

    Args:
        trailer: the last `TRAILER_BYTES` of the segment.

    Raises:
        SegmentDamaged: `trailer` is not the end of a segment.
    """
    if len(trailer) != _TRAILER.size or not trailer.endswith(_MAGIC):
        raise SegmentDamaged("the footer is damaged")
    _, count, _, _ = _TRAILER.unpack(trailer)
    return count * _INDEX.size + _TRAILER.size


def read_tail(tail: bytes, size: int) -> list[IndexEntry]:
    """Return the location of each record of a segment, read from the end of the segment.

    The records themselves are not verified.

    Args:
        tail: the end of the segment. `tail_bytes` returns how many bytes are needed.
        size: size of the whole segment in bytes.

    Raises:
        SegmentDamaged: the list of locations is damaged.
    """
    start, end, _ = _footer(tail, size)
    return [
        IndexEntry(RecordKind(kind), bool(flags & SUCCESS_FLAG), offset, length, position)
        for kind, flags, _, offset, length, position in _INDEX.iter_unpack(tail[start:end])
    ]


def record_payload(record: bytes | memoryview) -> bytes:
    """Verify one record of a segment, and return its payload.

    Args:
        record: the `HEAD_BYTES` before the payload, followed by the payload.

    Raises:
        SegmentDamaged: the record is invalid.
    """
    if len(record) < HEAD_BYTES:
        raise SegmentDamaged(f"a record of {len(record)} bytes is cut off")
    _, _, _, offset, length, *_, crc = _CHECKED.unpack_from(record)
    payload = record[HEAD_BYTES:]
    if length != len(payload) or zlib.crc32(payload, zlib.crc32(record[: _HEADER.size])) != crc:
        raise SegmentDamaged(f"the record of the line at {offset} is damaged")
    return bytes(payload)


def locate_records(data: bytes) -> Iterator[RecordLocation]:
    """Verify each record of a segment, and yield its location. Payloads are not copied.

    Raises:
        SegmentDamaged: a record or the list of records at the end is damaged. Locations of undamaged records
            may have been yielded before.
    """
    for kind, flags, offset, position, length, *tokens in walk_records(data):
        success, final = flags & SUCCESS_FLAG != 0, flags & FINAL_FLAG != 0
        i, c, o, r = tokens
        yield RecordLocation(kind, success, offset, position, length, (i, c, o, r), final)


def walk_records(data: bytes) -> Iterator[RawRecord]:
    """Verify each record of a segment, and yield it as a tuple. This is faster than `locate_records`.

    The comment at `RawRecord` lists the fields of the tuple.

    Raises:
        SegmentDamaged: a record or the list of records at the end is damaged. Undamaged records may have been
            yielded before.
    """
    end, _, count = _footer(data)
    view, position = memoryview(data), 0
    unpack, crc32, head, checked = _CHECKED.unpack_from, zlib.crc32, _HEADER.size, _CHECKED.size
    for _ in range(count):
        start = position + checked
        if start > end:
            raise SegmentDamaged("the footer counts more records than there are")
        kind, flags, _, offset, length, i, c, o, r, crc = unpack(data, position)
        own = crc32(view[position : position + head])
        position = start + length
        if position > end or crc32(view[start:position], own) != crc:
            raise SegmentDamaged(f"the record of the line at {offset} is damaged")
        yield kind, flags, offset, start, length, i, c, o, r


def tokens_before(head: bytes) -> tuple[int, ...]:
    """Return the four token counts of a record: input, cached, output, reasoning.

    Args:
        head: the `TOKENS_BYTES` bytes directly before the record's payload in its segment.
    """
    return _TOKENS.unpack_from(head)


def _footer(data: bytes, size: int | None = None) -> tuple[int, int, int]:
    """Find the list of records at the end of a segment (its footer).

    Return the start and end of the list in `data`, and the number of records.

    Args:
        data: the end of the segment, at least its footer and trailer.
        size: size of the whole segment in bytes; None if `data` is the whole segment.

    Raises:
        SegmentDamaged: the footer or the trailer is invalid.
    """
    if len(data) < _TRAILER.size:
        raise SegmentDamaged(f"a segment of {len(data)} bytes is cut off")
    start, count, crc, magic = _TRAILER.unpack_from(data, len(data) - _TRAILER.size)
    end = len(data) - _TRAILER.size
    start -= 0 if size is None else size - len(data)
    whole = magic == _MAGIC and start >= 0 and start + count * _INDEX.size == end
    if not whole or zlib.crc32(data[start:end]) != crc:
        raise SegmentDamaged("the footer is damaged")
    return start, end, count


def _u32(value: int) -> int:
    return min(max(value, 0), 0xFFFF_FFFF)
