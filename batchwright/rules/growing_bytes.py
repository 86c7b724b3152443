"""Store rows (records of a fixed size) one after the other in memory, and sort them.

For a large input, the rows are stored on the local disk instead
(`batchwright/storage/spill/spilled_bytes.py`). So the memory of a worker does not grow with the number of
lines.
"""

import heapq
import struct
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

_RUN_ROWS = 65_536  # number of rows sorted at once, to limit the number of Python objects
_READ_ROWS = 512  # number of rows of a run that are read at once
_UNPACKED_ROWS = 4096  # number of rows that are read at once, if the rows are read in their order


class GrowingBytes:
    """A growing sequence of bytes in memory."""

    def __init__(self) -> None:
        self._memory = bytearray()

    def __len__(self) -> int:
        return len(self._memory)

    def append(self, data: bytes) -> None:
        self._memory += data

    def read(self, start: int, end: int) -> bytes:
        """Return the bytes from position `start` up to `end`, or up to the last byte if there are fewer."""
        return bytes(memoryview(self._memory)[start:end])

    def replace(self, start: int, data: bytes) -> None:
        """Replace the bytes from position `start` on by `data`. The length of the sequence stays the same."""
        self._memory[start : start + len(data)] = data

    def clear(self) -> None:
        """Remove all bytes, and free their memory or disk space."""
        self._memory = bytearray()

    def pieces(self, size: int) -> Iterator[bytes]:
        """Yield all bytes in pieces of `size` bytes. The last piece may be shorter."""
        return (self.read(start, start + size) for start in range(0, len(self), size))


NewBytes = Callable[[], GrowingBytes]


def rows_of(stored: GrowingBytes, row_bytes: int) -> Iterator[bytes]:
    return _rows(stored, 0, len(stored), row_bytes)


def unpacked_rows(stored: GrowingBytes, row: struct.Struct) -> Iterator[tuple[Any, ...]]:
    """Yield the fields of each row (record of a fixed size) in `stored`. `row` is the format of a row."""
    step = _UNPACKED_ROWS * row.size
    for at in range(0, len(stored), step):
        yield from row.iter_unpack(stored.read(at, at + step))


def sorted_rows(
    stored: GrowingBytes, row_bytes: int, prepared: Callable[[bytes], list[bytes]] | None = None
) -> Iterable[bytes]:
    """Return all rows (records of a fixed size) in ascending order.

    The rows are sorted in groups of 65,536 rows (runs). If there are several runs, `stored` is overwritten
    with the sorted runs. The runs are merged while you read the result, so do not change `stored` until you
    have read the whole result.

    Args:
        stored: the rows, one after the other.
        row_bytes: size of a row, in bytes.
        prepared: called with the bytes of a run; returns the rows of the run in ascending order. The returned
            rows can have other content, but must have the same size. If `prepared` is None, the rows keep
            their content, so you can sort `stored` again later.
    """
    if prepared is None:
        prepared = partial(_sorted_run, struct.Struct(f"{row_bytes}s"))
    run, end = _RUN_ROWS * row_bytes, len(stored)
    if end <= run:
        return prepared(stored.read(0, end))
    starts = range(0, end, run)
    for start in starts:
        stored.replace(start, b"".join(prepared(stored.read(start, start + run))))
    return heapq.merge(*(_rows(stored, start, min(start + run, end), row_bytes) for start in starts))


def _sorted_run(row: struct.Struct, run: bytes) -> list[bytes]:
    return sorted([each for (each,) in row.iter_unpack(run)])


def _rows(stored: GrowingBytes, start: int, end: int, row_bytes: int) -> Iterator[bytes]:
    row, step = struct.Struct(f"{row_bytes}s"), _READ_ROWS * row_bytes
    for at in range(start, end, step):
        for (each,) in row.iter_unpack(stored.read(at, min(at + step, end))):
            yield each
