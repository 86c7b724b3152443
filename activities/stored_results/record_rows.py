"""Rows about records of a batch. A record is a result or an attempt of a line.

Each row says to which line a record belongs, and where the record is in a local file.
"""

import struct
from collections.abc import Iterable, Iterator
from itertools import repeat

from batchwright.rules.growing_bytes import GrowingBytes, sorted_rows, unpacked_rows

_ROW = struct.Struct(">QIQI")  # big-endian, so that packed rows are sorted by their fields
KEY_BYTES = 8
ROW_BYTES = _ROW.size  # 24

# The key of a line's record; number of the segment (stored object) that contains the record; position and
# length of the record in the local file. The key is twice the offset of the line in the input. It is one more
# for failed results and attempts, so that these are sorted after a success.
RecordRow = tuple[int, int, int, int]


def failure_key(offset: int) -> int:
    """Return the sort key of rows about a line's failed results and attempts.

    The sort key for a success of the same line is smaller by 1, so a success comes before failures.

    Args:
        offset: position of the line in the input, in bytes.
    """
    return offset << 1 | 1


def offset_of(key: int) -> int:
    """Return the offset of a line in the input. `key` is the sort key of one of the line's records."""
    return key >> 1


def unpack_row(row: bytes) -> RecordRow:
    return _ROW.unpack(row)


class RecordRows:
    """A list of rows, in memory or on the local disk.

    Each row says where a record (a result or an attempt of a line) is stored.
    """

    def __init__(self, stored: GrowingBytes) -> None:
        self._stored = stored

    def __len__(self) -> int:
        return len(self._stored) // ROW_BYTES

    def __iter__(self) -> Iterator[RecordRow]:
        return unpacked_rows(self._stored, _ROW)

    def offsets(self) -> Iterator[int]:
        """Yield for each row the offset of its line in the input."""
        return (key >> 1 for key, _, _, _ in self)

    def between(self, first: int, end: int) -> list[RecordRow]:
        """Return the rows `first` to `end - 1`, counted from 0."""
        return list(_ROW.iter_unpack(self._stored.read(first * ROW_BYTES, end * ROW_BYTES)))

    def add(
        self, keys: Iterable[int], segment: int, positions: Iterable[int], lengths: Iterable[int]
    ) -> None:
        """Add rows about records of one segment.

        `keys`, `positions` and `lengths` have one item for each record.

        Args:
            keys: sort key of each record, which is made of the offset of its line in the input.
            segment: number of the segment.
            positions: position of each record in the local file.
            lengths: length of each record in bytes.
        """
        self._stored.append(b"".join(map(_ROW.pack, keys, repeat(segment), positions, lengths)))

    def add_packed(self, rows: Iterable[bytes]) -> None:
        self._stored.append(b"".join(rows))

    def in_order(self) -> Iterable[bytes]:
        """Return the packed rows, sorted by sort key, segment and position.

        Add no rows before you have read the whole result.
        """
        return sorted_rows(self._stored, ROW_BYTES)

    def clear(self) -> None:
        self._stored.clear()
