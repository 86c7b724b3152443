"""Check that each `custom_id` of an input occurs only once."""

import struct
from collections.abc import Iterator

from batchwright.rules.growing_bytes import NewBytes, sorted_rows
from batchwright.rules.input.digest_set import DigestSet

_MAX_IN_TABLE = 1_000_000
_ROW = struct.Struct(">qIQ")  # the two parts of a hash, and the number of the line
_HASH = struct.Struct(">qI")


class LineIds:
    """A check of the `custom_id`s of an input. It finds those that occur more than once.

    The first million ids are compared immediately, in memory. The hashes of all further ids are stored, and
    compared at the end. `new_bytes` creates the storage for these hashes. If this storage is on disk, the
    hashes take no memory.
    """

    def __init__(self, new_bytes: NewBytes) -> None:
        self._table = DigestSet()
        self._others = new_bytes()

    def add(self, custom_id: bytes, line: int) -> bool:
        """Record the `custom_id` of a line. Return False if an earlier line has the same id, and else True.

        An id is compared only with the first million different ids. So the result can be True for a repeated
        id. At the end, `repeated` finds the lines for which `add` has wrongly returned True.
        """
        if len(self._table) < _MAX_IN_TABLE:
            return self._table.add(custom_id)
        parts = self._table.hashes(custom_id)
        if self._table.contains(parts):
            return False
        self._others.append(_ROW.pack(*parts, line))
        return True

    def repeated(self) -> Iterator[int]:
        """Yield the numbers of the lines with a repeated id that `add` did not find.

        Call this once, at the end.
        """
        before = b""
        for row in sorted_rows(self._others, _ROW.size, lambda run: sorted(_rows(run))):
            if row[: _HASH.size] == before:
                yield _ROW.unpack(row)[2]
            before = row[: _HASH.size]


def _rows(run: bytes) -> Iterator[bytes]:
    return (run[at : at + _ROW.size] for at in range(0, len(run), _ROW.size))
