"""The set of the result lines that a client has received. The client uses it to skip repeated lines."""

from bisect import bisect_right
from collections.abc import Iterable
from hashlib import blake2b

from batchwright.rules.growing_bytes import NewBytes, sorted_rows

_BYTES = 16
_BLOCK_ROWS = 256


class SeenLines:
    """The set of the ids of result lines that a client has received.

    Each id takes 16 bytes in the storage that `new_bytes` creates. Call `sort` after new ids were added:
    `is_seen` finds only ids that were added before the last call of `sort`.
    """

    def __init__(self, new_bytes: NewBytes) -> None:
        self._new_bytes = new_bytes
        self._rows = new_bytes()  # those of the last `sort` are sorted
        self._sorted = 0
        self._firsts: list[bytes] = []  # the first row of each block of sorted rows

    def add(self, ids: Iterable[bytes]) -> None:
        self._rows.append(b"".join(map(_row, ids)))

    def sort(self) -> None:
        """Sort the ids, so that `is_seen` finds them. If no id was added since the last call, do nothing."""
        if len(self._rows) == self._sorted:
            return
        ordered, block = self._new_bytes(), list[bytes]()
        self._firsts = []
        for row in sorted_rows(self._rows, _BYTES):
            if not block:
                self._firsts.append(row)
            block.append(row)
            if len(block) == _BLOCK_ROWS:
                ordered.append(b"".join(block))
                block = []
        ordered.append(b"".join(block))
        self._rows.clear()
        self._rows, self._sorted = ordered, len(ordered)

    def is_seen(self, id: bytes) -> bool:
        """Return True if this id was added before the last call of `sort`."""
        row = _row(id)
        block = bisect_right(self._firsts, row) - 1
        if block < 0:
            return False
        start = block * _BLOCK_ROWS * _BYTES
        rows = self._rows.read(start, min(start + _BLOCK_ROWS * _BYTES, self._sorted))
        at = rows.find(row)
        while at % _BYTES and at > 0:  # the bytes were found across two rows
            at = rows.find(row, at + 1)
        return at >= 0


def _row(id: bytes) -> bytes:
    return blake2b(id, digest_size=_BYTES).digest()
