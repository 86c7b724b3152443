"""Index of a batch's results. It selects one result for each line, in the order of the input.

The results themselves are in a file on the local disk. The index has one row of 24 bytes for each result.
`select` adds a second row for each result that it selects. The rows of a large batch are on the local disk,
too.
"""

import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import NamedTuple, Self

from batchwright.activities.stored_results.record_rows import (
    KEY_BYTES,
    RecordRow,
    RecordRows,
    failure_key,
    offset_of,
    unpack_row,
)
from batchwright.activities.stored_results.result_spool import ResultSpool
from batchwright.contracts.terms import Usage
from batchwright.rules.results.segment_format import (
    FINAL_FLAG,
    SUCCESS_FLAG,
    TOKENS_BYTES,
    RawRecord,
    RecordKind,
    SegmentDamaged,
    SegmentRecord,
    SegmentWriter,
    tokens_before,
    walk_records,
)
from batchwright.rules.results.token_usage import NO_TOKENS, Tokens, total_usage

BLOCK_BYTES = 1024 * 1024
_RECORDS_AT_ONCE = 4096  # number of records or rows that are handled together
_NEWLINE = b"\n"
_COUNTS = 5  # successes, and tokens of four kinds
_OWN_SEGMENT = "~"  # name of the segment of lines that finalization settled; sorts after all others
_LOW_BYTE = KEY_BYTES - 1  # place of the lowest byte of the key in a packed row


class FolderUsage(NamedTuple):
    """The usage of the selected results in one folder of segments. A folder has the segments of one model.

    Attributes:
        requests: number of the results that are successes.
        tokens: tokens of all the results, both successes and failures.
    """

    requests: int
    tokens: Tokens


NO_USAGE = FolderUsage(0, NO_TOKENS)


class SelectedResults(NamedTuple):
    """The result that was selected for each line, as rows of the index in the order of the input.

    A line without a result has no row.

    Attributes:
        output: results of the lines that succeeded.
        error: results of the lines that failed.
        usages: successes and tokens of all selected results, by the folder of their segments.
    """

    output: RecordRows
    error: RecordRows
    usages: Mapping[str, FolderUsage]

    @property
    def usage(self) -> Usage:
        """Tokens of all selected results."""
        return total_usage(used.tokens for used in self.usages.values())

    @property
    def lines(self) -> int:
        return len(self.output) + len(self.error)


class ResultIndex:
    """A context manager with an index of all results of a batch. The results are in a local file.

    Segments may be added in any order. `select` then selects one result for each line.

    Raises, from all methods that add, select or read results:
        StorageFull, StorageUnavailable: the local disk is full or cannot be used.
    """

    def __init__(self, spool: ResultSpool) -> None:
        self._spool = spool
        self._segments: list[str] = []
        # By the folder of segments: number of successes, and tokens of four kinds.
        self._usages = defaultdict[str, list[int]](lambda: [0] * _COUNTS)
        self._results = RecordRows(spool.new_bytes())
        self._selected = [RecordRows(spool.new_bytes()) for _ in range(2)]  # output, error
        self._dead_letters = RecordRows(spool.new_bytes())
        self._attempts = RecordRows(spool.new_bytes())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for rows in (self._results, *self._selected, self._dead_letters, self._attempts):
            rows.clear()
        self._segments = []

    def __len__(self) -> int:
        return len(self._results)

    def add_segment(self, name: str, data: bytes) -> int:
        """Add all results in a segment, a stored object with many results. Return their number.

        The segment is written to the local file.

        Args:
            name: storage key of the segment.
            data: content of the segment.

        Raises:
            SegmentDamaged: the data is not a valid segment.
        """
        before, start = len(self), self._spool.append(data)
        self._segments.append(name)
        records = walk_records(data)
        try:
            while some := list(islice(records, _RECORDS_AT_ONCE)):
                self._add_entries(start, some)
        except (SegmentDamaged, struct.error) as error:  # a negative offset cannot be packed
            raise SegmentDamaged(f"Segment {name!r} is damaged: {error}.") from error
        return len(self) - before

    def _add_entries(self, start: int, records: list[RawRecord]) -> None:
        attempts = [record for record in records if record[0] != RecordKind.SETTLED]
        if attempts:
            for flag, rows in ((FINAL_FLAG, self._dead_letters), (0, self._attempts)):
                if some := [record for record in attempts if record[1] & FINAL_FLAG == flag]:
                    _, _, offsets, positions, lengths, *_ = zip(*some, strict=True)
                    self._add_rows(rows, map(failure_key, offsets), start, positions, lengths)
            records = [record for record in records if record[0] == RecordKind.SETTLED]
        if records:
            self._add_results(start, records)

    def _add_results(self, start: int, records: list[RawRecord]) -> None:
        _, flags, offsets, positions, lengths, *tokens = zip(*records, strict=True)
        successes = [flag & SUCCESS_FLAG for flag in flags]
        keys = [offset << 1 | 1 - success for offset, success in zip(offsets, successes, strict=True)]
        self._add_rows(self._results, keys, start, positions, lengths)
        usage = self._usages[_folder(self._segments[-1])]
        for place, column in enumerate((successes, *tokens)):
            usage[place] += sum(column)

    def _add_rows(
        self,
        rows: RecordRows,
        keys: Iterable[int],
        start: int,
        positions: Iterable[int],
        lengths: Iterable[int],
    ) -> None:
        rows.add(keys, len(self._segments) - 1, [start + position for position in positions], lengths)

    def add_records(self, records: Iterable[SegmentRecord]) -> None:
        """Add results that finalization has created. No stored segment contains these results.

        The records may include dead letters (records of why lines failed).
        """
        writer = SegmentWriter()
        for record in records:
            writer.add(record)
        self.add_segment(_OWN_SEGMENT, writer.finish())

    def line(self, row: RecordRow) -> bytes:
        """Return the result that a row describes, as a line of the output or error file."""
        _, _, position, length = row
        return self._read(length, position)

    def _read(self, length: int, position: int) -> bytes:
        return self._spool.read_parts([(position, length)], b"")

    def select(self) -> SelectedResults:
        """Select one result for each line: a success, or a failure if the line has no success.

        If a line has several results of the selected kind, the result in the segment with the lowest name is
        selected. After further results are added, call `select` again. The new call deletes the rows of the
        earlier selection, so the earlier selection can no longer be used.
        """
        output, error = self._selected
        output.clear()
        error.clear()
        usages = {folder: list(counts) for folder, counts in self._usages.items()}
        rows = iter(self._results.in_order())
        best = next(rows, b"")
        while some := list(islice(rows, _RECORDS_AT_ONCE)):
            *chosen, best = self._best_rows([best, *some], usages)
            _add_by_success(chosen, output, error)
        _add_by_success([best] if best else [], output, error)
        used = {folder: FolderUsage(counts[0], Tokens(*counts[1:])) for folder, counts in usages.items()}
        return SelectedResults(output, error, used)

    def _best_rows(self, rows: list[bytes], usages: dict[str, list[int]]) -> list[bytes]:
        """Select one result for each line. Return the packed rows of the selected results, in input order.

        `select` describes which result is selected. The successes and tokens of all results that are not
        selected are subtracted from `usages`.

        Args:
            rows: packed rows of results, in the order of `RecordRows.in_order`; at least one row.
            usages: five numbers for each folder of segments: successes, and tokens of each of four kinds.
        """
        best = rows[0]
        chosen, head = [best], best[:_LOW_BYTE]
        for row in rows[1:]:
            if row[:_LOW_BYTE] != head or row[_LOW_BYTE] | 1 != best[_LOW_BYTE] | 1:  # of another line
                best, head = row, row[:_LOW_BYTE]
                chosen.append(row)
            # Rows of a line are sorted by success, and then by the order in which their segments were added.
            elif row[_LOW_BYTE] == best[_LOW_BYTE] and self._name(row) < self._name(best):
                self._subtract(best, usages)
                best = chosen[-1] = row
            else:
                self._subtract(row, usages)
        return chosen

    def _name(self, row: bytes) -> str:
        _, segment, _, _ = unpack_row(row)
        return self._segments[segment]

    def _subtract(self, row: bytes, usages: dict[str, list[int]]) -> None:
        key, segment, position, _ = unpack_row(row)
        used = tokens_before(self._read(TOKENS_BYTES, position - TOKENS_BYTES))
        usage = usages[_folder(self._segments[segment])]
        for place, count in enumerate((1 - key % 2, *used)):
            usage[place] -= count

    def lines_by_segment(self, rows: RecordRows) -> Iterator[tuple[str, bytes]]:
        """Yield the results that the rows describe, as lines of the output or error file.

        Each item is (storage key of the result's segment, line).
        """
        for row in rows:
            yield self._segments[row[1]], self.line(row)

    def dead_letters(self, selected: SelectedResults) -> Iterator[tuple[int, bytes]]:
        """Yield the dead letters of failed lines, sorted by offset in the input.

        A dead letter is a record of why a line failed. Each item is (offset of the line in the input, dead
        letter). If a dead letter and the line's selected result are in different segments, the dead letter
        belongs to another result and is left out.
        """
        if not self._dead_letters:
            return
        failed = iter(selected.error)
        result = next(failed, None)
        for row in self._dead_letters.in_order():
            key, segment, position, length = unpack_row(row)
            while result is not None and result[0] < key:
                result = next(failed, None)
            if result is None:
                return
            if result[:2] == (key, segment):
                yield offset_of(key), self._read(length, position)

    def attempt_rows(self) -> RecordRows:
        """Return the rows of all records about attempts, except dead letters, by offset in the input."""
        ordered = RecordRows(self._spool.new_bytes())
        rows = iter(self._attempts.in_order())
        while some := list(islice(rows, _RECORDS_AT_ONCE)):
            ordered.add_packed(some)
        return ordered

    def segments(self) -> frozenset[str]:
        """Return the names of all segments that were added."""
        return frozenset(self._segments)

    def line_blocks(self, rows: RecordRows) -> Iterator[bytes]:
        """Yield the results that the rows describe, as lines of a file, in blocks of about 1 MiB."""
        block: list[tuple[int, int]] = []
        size = 0
        for _, _, position, length in rows:
            block.append((position, length))
            size += length + 1
            if size >= BLOCK_BYTES:
                yield self._spool.read_parts(block, _NEWLINE)
                block, size = [], 0
        if block:
            yield self._spool.read_parts(block, _NEWLINE)


def _add_by_success(rows: list[bytes], output: RecordRows, error: RecordRows) -> None:
    """Add packed rows of successes to `output`, and those of failures to `error`."""
    if failures := [row for row in rows if row[_LOW_BYTE] & 1]:
        error.add_packed(failures)
        rows = [row for row in rows if not row[_LOW_BYTE] & 1]
    output.add_packed(rows)


def _folder(segment: str) -> str:
    """Return the folder of all segments of a model. `segment` is the storage key of any of these segments."""
    return segment.rsplit("/", 2)[0]
