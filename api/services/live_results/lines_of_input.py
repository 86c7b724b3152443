"""Collects the lines of a running batch in input order, including duplicates, with their positions in the
input.

A line takes 12 bytes. For a duplicate (a line that repeats an earlier line), add 20 bytes and the size of its
record in the list of duplicates. The data are stored in columns (arrays of numbers). If the batch is large,
the columns are on the local disk.
"""

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from batchwright.rules.growing_bytes import sorted_rows
from batchwright.rules.planning.duplicate_list import Duplicate, decode_duplicates
from batchwright.rules.planning.plan_format import PlanDamaged, walk_entries
from batchwright.storage.spill.columns import Columns, ColumnSpace
from batchwright.storage.spill.spilled_bytes import SpillSpace

_ROWS_AT_ONCE = 4096
_OFFSETS_AT_ONCE = 65_536
_OFFSET_BYTES = 8
# Offset of the earlier line, offset of the duplicate, and place and length of its entry in the list.
_DUPLICATE = struct.Struct(">QQQI")


class BatchLines(NamedTuple):
    """All lines of a batch, as columns (arrays of numbers). Lines are numbered from 0 in the order of the
    input.

    A duplicate is a line that repeats an earlier line. The earlier line is the duplicate's original. Both
    lines get the same result. Ingestion (the step that reads the input) has stored a record of each
    duplicate.

    Attributes:
        columns: owner of the memory, or of the file on disk, that contains the columns below.
        offsets: for each line, the byte at which it begins in the input file.
        distances: for each duplicate, its line number minus the line number of its original; for each
            other line, 0.
        originals, duplicates: pairs of line numbers, sorted. Line `duplicates[n]` repeats line
            `originals[n]`.
        entries, lengths: for the pair number `n`, the duplicate's record begins at byte `entries[n]` of
            `texts` and has `lengths[n]` bytes.
        texts: the records of all duplicates, as ingestion has stored them.
    """

    columns: Columns
    offsets: memoryview
    distances: memoryview
    originals: memoryview
    duplicates: memoryview
    entries: memoryview
    lengths: memoryview
    texts: memoryview

    def original(self, line: int) -> int:
        """Return the number of the line whose result is used for `line`.

        If `line` is a duplicate, return the number of its original. Otherwise return `line`.
        """
        return line - self.distances[line]

    def all_offsets(self) -> Iterator[int]:
        """Yield for each line the byte at which it begins in the input file, in input order.

        If these numbers are on disk, only a small part of them is in memory at any time.
        """
        for start in range(0, len(self.offsets), _OFFSETS_AT_ONCE):
            yield from self.offsets[start : start + _OFFSETS_AT_ONCE]
            self.columns.release_pages()

    def number(self, offset: int) -> int | None:
        """Return the number of the line that begins at the byte `offset` of the input; None if no line begins
        there.
        """
        line = bisect_left(self.offsets, offset)
        return line if line < len(self.offsets) and self.offsets[line] == offset else None

    def sharing_result(self, line: int) -> Sequence[int]:
        """Return the numbers of all lines that get the result of this line: the line itself and its
        duplicates.

        If the line is a duplicate, return only its own number.
        """
        first = bisect_left(self.originals, line)
        if first == len(self.originals) or self.originals[first] != line:
            return (line,)
        return [line, *self.duplicates[first : bisect_right(self.originals, line)]]

    def duplicate(self, line: int) -> Duplicate | None:
        """Return the stored record of a duplicate line; None if the line is not a duplicate."""
        if not self.distances[line]:
            return None
        original = self.original(line)
        first, end = bisect_left(self.originals, original), bisect_right(self.originals, original)
        place = bisect_left(self.duplicates, line, first, end)
        at = self.entries[place]
        [duplicate] = decode_duplicates([bytes(self.texts[at : at + self.lengths[place]])])
        return duplicate


class LineCollector:
    """A collector of the lines of a batch. Add lines in any order. Then call `lines`, which returns all lines
    in input order.

    Raises, from all methods:
        StorageFull, StorageUnavailable: there are too many lines for memory, and the local disk is full or
            cannot be used.
    """

    def __init__(self, space: SpillSpace) -> None:
        self._offsets, self._duplicates, self._texts = (space.new_bytes() for _ in range(3))

    def add_plan(self, entries: bytes) -> None:
        """Add the lines of a part of a plan. A plan is a stored list of a model's lines in the order of
        sending, with one entry for each line.

        Raises:
            PlanDamaged: `entries` ends within an entry.
        """
        self.add_offsets([offset for offset, _, _ in walk_entries(entries)])

    def add_offsets(self, offsets: Sequence[int]) -> None:
        """Add the lines that begin at these byte offsets of the input.

        Raises:
            PlanDamaged: an offset is negative.
        """
        try:
            self._offsets.append(struct.pack(f">{len(offsets)}Q", *offsets))
        except struct.error as error:
            raise PlanDamaged(f"A line begins before the input: {error}.") from error

    def add_duplicates(self, texts: Sequence[bytes]) -> None:
        """Add duplicates: lines that repeat an earlier line and get its result.

        Args:
            texts: one record for each duplicate, without a newline, from the list of duplicates that
                ingestion has stored.
        """
        rows, at = list[bytes](), len(self._texts)
        for text, (offset, first, _) in zip(texts, decode_duplicates(texts), strict=True):
            rows.append(_DUPLICATE.pack(first, offset, at, len(text)))
            at += len(text)
        self._duplicates.append(b"".join(rows))
        self._texts.append(b"".join(texts))
        self.add_offsets([offset for _, offset, _, _ in map(_DUPLICATE.unpack, rows)])

    def lines(self, space: ColumnSpace) -> BatchLines:
        """Return all collected lines in input order. This takes about 2 microseconds for each line.

        Args:
            space: creates the columns (arrays in memory or in a file) in which the lines are returned.
        """
        lines, duplicates = len(self._offsets) // _OFFSET_BYTES, len(self._duplicates) // _DUPLICATE.size
        columns = space.new_columns(
            ("Q", lines),
            ("i", lines),
            ("I", duplicates),
            ("I", duplicates),
            ("Q", duplicates),
            ("I", duplicates),
            ("B", len(self._texts)),
        )
        found = BatchLines(columns, *columns.views)
        at = 0
        for rows in _groups(sorted_rows(self._offsets, _OFFSET_BYTES)):
            found.offsets[at : at + len(rows)] = array("Q", struct.unpack(f">{len(rows)}Q", b"".join(rows)))
            at += len(rows)
        rows = map(_DUPLICATE.unpack, sorted_rows(self._duplicates, _DUPLICATE.size))
        for n, (first, offset, entry, length) in enumerate(rows):
            original, line = bisect_left(found.offsets, first), bisect_left(found.offsets, offset)
            found.originals[n], found.duplicates[n], found.distances[line] = original, line, line - original
            found.entries[n], found.lengths[n] = entry, length
        at = 0
        for piece in self._texts.pieces(1024 * 1024):
            found.texts[at : at + len(piece)] = piece
            at += len(piece)
        columns.release_pages()
        return found


def _groups(rows: Iterable[bytes]) -> Iterator[list[bytes]]:
    left = iter(rows)
    while group := list(islice(left, _ROWS_AT_ONCE)):
        yield group
