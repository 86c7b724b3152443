"""The segment format: settled results and attempts of a slice's lines, as one immutable object.

records   each a header, the crc of header and payload, the payload
footer    an index entry a record
trailer   the footer's place, length and crc, and magic
A reader needs the whole object in memory: segments are at most a few MiB plus one answer.
"""

import struct
import zlib
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

from msgspec import Struct

from batchwright.rules.usage import NO_TOKENS, Counted, Tokens

_MAGIC = b"BWSEG001"
_HEADER = struct.Struct("<BBHqIIIII")  # kind, flags, spare, offset, length, 4 x usage
_CRC = struct.Struct("<I")
_CHECKED = struct.Struct(_HEADER.format + "I")  # the header and the crc behind it
_INDEX = struct.Struct("<BBHqIQ")  # kind, flags, spare, offset, length, position of the payload
_TRAILER = struct.Struct("<QII8s")
_TOKENS = struct.Struct("<4I")  # the end of the header
SUCCESS, FINAL = 1, 2  # flags
TOKENS_BYTES = _TOKENS.size + _CRC.size  # before a payload


# Kind, flags, offset in the input, position and length of the payload, and the four numbers of tokens.
Walked = tuple[int, int, int, int, int, int, int, int, int]


class SegmentDamaged(ValueError):
    """The bytes are not a whole segment."""


class Kind(IntEnum):
    SETTLED = 1  # payload: the line of the output or error file, without a newline
    ATTEMPT = 2  # payload: JSON {"count", "not_before" (Unix seconds), "error"}
    SUBMITTED = 3  # payload: the same with "job" {"id", "lane", "since"}: a backend runs it


class Record(Struct, frozen=True, order=True):
    """`offset` is the line's place in the input. `success` chooses between output and error file.

    `final`: an attempt that was the line's last; the segment has its result, too.
    """

    kind: Kind
    offset: int
    payload: bytes
    success: bool = False
    usage: Counted = NO_TOKENS
    final: bool = False


class Located(NamedTuple):
    """A record whose payload is left in its segment; tokens in the order of Usage's fields."""

    kind: int
    success: bool
    offset: int
    position: int
    length: int
    tokens: tuple[int, int, int, int]
    final: bool = False


class IndexEntry(NamedTuple):
    kind: Kind
    success: bool
    offset: int
    length: int
    position: int


class SegmentWriter:
    """Collects records; `finish()` gives the object's bytes."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._index: list[bytes] = []

    def __len__(self) -> int:
        return len(self._index)

    @property
    def size(self) -> int:
        return len(self._data)

    def add(self, record: Record) -> None:
        kind, offset, payload, usage = record.kind, record.offset, record.payload, record.usage
        flags, length = record.success * SUCCESS | record.final * FINAL, len(payload)
        tokens = usage.input_tokens, usage.cached_tokens, usage.output_tokens, usage.reasoning_tokens
        try:
            header = _HEADER.pack(kind, flags, 0, offset, length, *tokens)
        except struct.error:  # more tokens than fit, or fewer than none
            header = _HEADER.pack(kind, flags, 0, offset, length, *map(_u32, tokens))
        data = self._data
        data += header
        data += _CRC.pack(zlib.crc32(payload, zlib.crc32(header)))
        self._index.append(_INDEX.pack(kind, flags, 0, offset, length, len(data)))
        data += payload

    def copy(self, data: bytes, place: Located) -> None:
        """A record of the segment `data`, byte for byte."""
        flags = place.success * SUCCESS | place.final * FINAL
        end, head = place.position + place.length, _HEADER.size + _CRC.size
        position = len(self._data) + head
        self._index.append(_INDEX.pack(place.kind, flags, 0, place.offset, place.length, position))
        self._data += memoryview(data)[place.position - head : end]

    def finish(self) -> bytes:
        footer = b"".join(self._index)
        trailer = _TRAILER.pack(len(self._data), len(self._index), zlib.crc32(footer), _MAGIC)
        return bytes(self._data) + footer + trailer


def read_index(data: bytes) -> list[IndexEntry]:
    """What a segment holds, from its footer alone. Raises SegmentDamaged."""
    start, end, _ = _footer(data)
    return [
        IndexEntry(Kind(kind), bool(flags & SUCCESS), offset, length, position)
        for kind, flags, _, offset, length, position in _INDEX.iter_unpack(data[start:end])
    ]


def read_records(data: bytes) -> Iterator[Record]:
    """Every record in the order written, checked. Raises SegmentDamaged at the first bad one."""
    for place in locate_records(data):
        payload, usage = data[place.position : place.position + place.length], Tokens(*place.tokens)
        yield Record(Kind(place.kind), place.offset, payload, place.success, usage, place.final)


def locate_records(data: bytes) -> Iterator[Located]:
    """The same without copying payloads, for whoever reads many segments."""
    for kind, flags, offset, position, length, *tokens in walk_records(data):
        success, final = flags & SUCCESS != 0, flags & FINAL != 0
        i, c, o, r = tokens
        yield Located(kind, success, offset, position, length, (i, c, o, r), final)


def walk_records(data: bytes) -> Iterator[Walked]:
    """The same in the plainest form."""
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
    """The tokens of the record whose payload follows the `TOKENS_BYTES` of `head`."""
    return _TOKENS.unpack_from(head)


def _footer(data: bytes) -> tuple[int, int, int]:
    """Start and end of the footer, and how many records there are."""
    if len(data) < _TRAILER.size:
        raise SegmentDamaged(f"a segment of {len(data)} bytes is cut off")
    start, count, crc, magic = _TRAILER.unpack_from(data, len(data) - _TRAILER.size)
    end = len(data) - _TRAILER.size
    whole = magic == _MAGIC and start + count * _INDEX.size == end
    if not whole or zlib.crc32(data[start:end]) != crc:
        raise SegmentDamaged("the footer is damaged")
    return start, end, count


def _u32(value: int) -> int:
    return min(max(value, 0), 0xFFFF_FFFF)
