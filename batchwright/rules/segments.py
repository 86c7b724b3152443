"""The segment format: settled results and attempts of a slice's lines, as one immutable object.

records: header, payload   ...   footer: an index entry a record   trailer: the footer's place, its crc, magic
A reader needs the whole object in memory: segments are at most a few MiB plus one answer.
"""

import struct
import zlib
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

from batchwright.contracts.openai import Usage

_MAGIC = b"BWSEG001"
_HEADER = struct.Struct("<BBHqIIIIII")  # kind, flags, spare, offset, length, 4 x usage, crc32
_INDEX = struct.Struct("<BBHqIQ")  # kind, flags, spare, offset, length, position of the payload
_TRAILER = struct.Struct("<QII8s")
_SUCCESS = 1


class SegmentDamaged(ValueError):
    """The bytes are not a whole segment."""


class Kind(IntEnum):
    SETTLED = 1  # payload: the line of the output or error file, without a newline
    ATTEMPT = 2  # payload: JSON {"count", "not_before" (Unix seconds), "error"}
    SUBMITTED = 3  # payload: JSON with a backend's job id


class Record(NamedTuple):
    """`offset` is the line's place in the input. `success` chooses between output and error file."""

    kind: Kind
    offset: int
    payload: bytes
    success: bool = False
    usage: Usage = Usage()


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
        flags = _SUCCESS if record.success else 0
        usage = record.usage
        self._data += _HEADER.pack(
            record.kind, flags, 0, record.offset, len(record.payload),
            _u32(usage.input_tokens), _u32(usage.cached_tokens), _u32(usage.output_tokens),
            _u32(usage.reasoning_tokens), zlib.crc32(record.payload),
        )  # fmt: skip
        place = _INDEX.pack(record.kind, flags, 0, record.offset, len(record.payload), len(self._data))
        self._index.append(place)
        self._data += record.payload

    def finish(self) -> bytes:
        footer = b"".join(self._index)
        trailer = _TRAILER.pack(len(self._data), len(self._index), zlib.crc32(footer), _MAGIC)
        return bytes(self._data) + footer + trailer


def read_index(data: bytes) -> list[IndexEntry]:
    """What a segment holds, from its footer alone. Raises SegmentDamaged."""
    start, end, _ = _footer(data)
    return [
        IndexEntry(Kind(kind), bool(flags & _SUCCESS), offset, length, position)
        for kind, flags, _, offset, length, position in _INDEX.iter_unpack(data[start:end])
    ]


def read_records(data: bytes) -> Iterator[Record]:
    """Every record in the order written, checked. Raises SegmentDamaged at the first bad one."""
    position, _, count = _footer(data)
    end, position = position, 0
    for _ in range(count):
        kind, flags, _, offset, length, i, c, o, r, crc = _HEADER.unpack_from(data, position)
        position += _HEADER.size
        payload = data[position : position + length]
        position += length
        if position > end or zlib.crc32(payload) != crc:
            raise SegmentDamaged(f"the record of the line at {offset} is damaged")
        usage = Usage(input_tokens=i, cached_tokens=c, output_tokens=o, reasoning_tokens=r)
        yield Record(Kind(kind), offset, payload, bool(flags & _SUCCESS), usage)


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
