"""Index of a batch's results. The results themselves are in a file on the local disk.

The index needs 21 bytes of memory for each result. It consists of arrays instead of objects, so that 50,000
lines take 1 MB. A result's position in these arrays is called its entry number.
"""

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple, Self

from batchwright.activities.results.result_spool import ResultSpool
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
from batchwright.rules.results.token_usage import Tokens, total_usage

SORT_RUN = 65_536  # approximate number of entries that are sorted at once
BLOCK_BYTES = 1024 * 1024
_SAMPLES_PER_RUN = 64  # offsets sampled for each run
_RECORDS_AT_ONCE = 4096  # number of records that are indexed together
_NEWLINE = b"\n"
_NO_USAGE = (0, 0, 0, 0, 0)
_OWN_SEGMENT = "~"  # name of the segment of lines that finalization settled; sorts after all others


def in_input_order(offsets: "array[int]", run: int = SORT_RUN) -> "array[int]":
    """Return the entry numbers of all results, sorted by the offsets of their lines in the input.

    Entries with the same offset keep their order. The entries are sorted in groups (runs), because sorting
    all of them at once would need ten times the memory.

    Args:
        offsets: the offset of each entry.
        run: approximate number of entries in a group.
    """
    count = len(offsets)
    if count <= run:
        return array("I", sorted(range(count), key=offsets.__getitem__))
    cuts = _run_boundaries(offsets, run)
    parts = [array("I") for _ in range(len(cuts) + 1)]
    for entry, offset in enumerate(offsets):
        parts[bisect_right(cuts, offset)].append(entry)
    ordered = array("I")
    for number, part in enumerate(parts):
        ordered.extend(sorted(part, key=offsets.__getitem__))
        parts[number] = array("I")
    return ordered


def _run_boundaries(offsets: "array[int]", run: int) -> list[int]:
    """Return offsets at which the entries can be divided into groups (runs) of about `run` entries.

    Args:
        offsets: each entry's offset in the input.
        run: number of entries in a group.
    """
    runs = -(-len(offsets) // run)
    sample = sorted(offsets[:: max(1, len(offsets) // (runs * _SAMPLES_PER_RUN))])
    return sample[_SAMPLES_PER_RUN::_SAMPLES_PER_RUN]


class SegmentUsage(NamedTuple):
    """Number of successes in one segment that were selected for the output file, and their tokens.

    `segment` is the storage key of the segment, a stored object with many results.
    """

    segment: str
    requests: int
    tokens: Tokens


class SelectedResults(NamedTuple):
    """The result that was selected for each line, as entry numbers in the order of the input.

    Lines without a result are missing.

    Attributes:
        output: results of the lines that succeeded.
        error: results of the lines that failed.
        usages: tokens of all these results, by segment.
    """

    output: "array[int]"
    error: "array[int]"
    usages: Sequence[SegmentUsage] = ()

    @property
    def usage(self) -> Usage:
        """Tokens that all these lines have used."""
        return total_usage(used.tokens for used in self.usages)

    @property
    def lines(self) -> int:
        return len(self.output) + len(self.error)


class DeadLetterIndex:
    """Positions of the batch's dead letters on the local disk. Each dead letter takes 24 bytes of memory.

    A dead letter is the stored record of a line's last attempt, with the reason why the line failed.
    """

    def __init__(self) -> None:
        self._segment, self._length = array("I"), array("I")
        self._offset, self._position = array("q"), array("Q")

    def __len__(self) -> int:
        return len(self._offset)

    def add(self, segment: int, offset: int, position: int, length: int) -> None:
        """Add the dead letter of the line at `offset` in the input.

        Args:
            segment: number of the segment (stored object) that contains the dead letter.
            position: start of the dead letter in the local file.
            length: length of the dead letter in bytes.
        """
        self._segment.append(segment)
        self._offset.append(offset)
        self._position.append(position)
        self._length.append(length)

    def sorted_by_offset(self) -> Iterator[tuple[int, int, int, int]]:
        """Yield each dead letter as (offset, segment, position, length), in the order of the offsets.

        A dead letter records why a line failed. `offset` is the byte offset of the line in the input.
        `position` is the byte offset of the record in segment number `segment`, and `length` is its size in
        bytes.
        """
        for entry in sorted(range(len(self)), key=self._offset.__getitem__):
            yield self._offset[entry], self._segment[entry], self._position[entry], self._length[entry]


class AttemptIndex:
    """Positions of records of failed attempts on the local disk.

    After each of these attempts, the line was sent again.
    """

    def __init__(self) -> None:
        self._offset, self._position, self._length = array("q"), array("Q"), array("I")
        self._ordered = array("I")

    def add(self, offset: int, position: int, length: int) -> None:
        """Add the record of a failed attempt of the line at `offset` in the input.

        Args:
            position: start of the record in the local file.
            length: length of the record in bytes.
        """
        self._offset.append(offset)
        self._position.append(position)
        self._length.append(length)

    def find(self, offset: int) -> Iterator[tuple[int, int]]:
        """Find all records of the line at `offset` in the input.

        Yield their positions and lengths in the local file.
        """
        if len(self._ordered) != len(self._offset):
            self._ordered = array("I", sorted(range(len(self._offset)), key=self._offset.__getitem__))
        at = bisect_left(self._ordered, offset, key=self._offset.__getitem__)
        for entry in islice(self._ordered, at, None):
            if self._offset[entry] != offset:
                return
            yield self._position[entry], self._length[entry]


class ResultIndex:
    """Index of all results of a batch, which are kept in a local file. Use it as a context manager.

    Segments may be added in any order. `select` then selects one result for each line.
    """

    def __init__(self, spool: ResultSpool) -> None:
        self._spool = spool
        self._clear()

    def _clear(self) -> None:
        self._segments: list[str] = []
        self._firsts = array("Q")  # number of the first entry of each segment
        self._offset = array("q")
        self._position = array("Q")
        self._length = array("I")
        self._success = array("B")
        self._usages = array("Q")  # of each segment: successes, and tokens of four kinds
        self._dead_letters = DeadLetterIndex()
        self._attempts = AttemptIndex()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._clear()

    def __len__(self) -> int:
        return len(self._offset)

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
        self._firsts.append(before)
        self._usages.extend(_NO_USAGE)
        records = walk_records(data)
        try:
            while some := list(islice(records, _RECORDS_AT_ONCE)):
                self._add_entries(start, some)
        except SegmentDamaged as error:
            raise SegmentDamaged(f"Segment {name!r} is damaged: {error}.") from error
        return len(self) - before

    def _add_entries(self, start: int, records: list[RawRecord]) -> None:
        attempts = [record for record in records if record[0] != RecordKind.SETTLED]
        for _, flags, offset, position, length, *_ in attempts:
            if flags & FINAL_FLAG:
                self._dead_letters.add(len(self._segments) - 1, offset, start + position, length)
            else:
                self._attempts.add(offset, start + position, length)
        if attempts:
            records = [record for record in records if record[0] == RecordKind.SETTLED]
        if records:
            self._add_results(start, records)

    def _add_results(self, start: int, records: list[RawRecord]) -> None:
        _, flags, offsets, positions, lengths, *tokens = zip(*records, strict=True)
        self._offset.extend(offsets)
        self._position.extend([start + position for position in positions])
        self._length.extend(lengths)
        successes = [flag & SUCCESS_FLAG for flag in flags]
        self._success.extend(successes)
        for place, column in enumerate((successes, *tokens), start=-len(_NO_USAGE)):
            self._usages[place] += sum(column)

    def add_errors(self, lines: Sequence[tuple[int, bytes]]) -> None:
        """Add error results that were created for lines without a result, and are in no stored segment.

        Args:
            lines: pairs of the offset of a line in the input, and the line to write to the error file for it.
        """
        self.add_records([SegmentRecord(RecordKind.SETTLED, offset, line) for offset, line in lines])

    def add_records(self, records: Iterable[SegmentRecord]) -> None:
        """Add results that finalization has created, and that are in no stored segment.

        The records may include dead letters, the reasons why lines failed.
        """
        writer = SegmentWriter()
        for record in records:
            writer.add(record)
        self.add_segment(_OWN_SEGMENT, writer.finish())

    def line(self, entry: int) -> bytes:
        """Return the result with the number `entry`, as a line of the output or error file."""
        return self._read(self._length[entry], self._position[entry])

    def _read(self, length: int, position: int) -> bytes:
        return bytes(self._spool.read_parts([(position, length)], b""))

    def select(self) -> SelectedResults:
        """Select one result for each line: a success if there is one, an error if there is none.

        If a line has several successes, or only several errors, select the result whose segment (stored
        object) has the lowest name. If results are added later, call this again.
        """
        selected, others = self._split(in_input_order(self._offset))
        output, error = array("I"), array("I")
        success = self._success
        for entry in selected:
            (output if success[entry] else error).append(entry)
        return SelectedResults(output, error, self._usages_without(others))

    def _split(self, ordered: "array[int]") -> tuple["array[int]", "array[int]"]:
        """Select one entry for each line. Return the selected entries, and all other entries.

        Args:
            ordered: all entries, sorted by the offsets of their lines. So entries of the same line are
                neighbours.
        """
        selected, others, last = array("I"), array("I"), -1
        offsets = self._offset
        for entry in ordered:
            offset = offsets[entry]
            if offset != last:
                selected.append(entry)
                last = offset
            elif self._rank(entry) < self._rank(selected[-1]):
                others.append(selected[-1])
                selected[-1] = entry
            else:
                others.append(entry)
        return selected, others

    def _rank(self, entry: int) -> tuple[bool, str]:
        """Return a sort key for a result.

        Of several results of a line, the one with the lowest key is selected.
        """
        return not self._success[entry], self._segments[self._segment_of(entry)]

    def _segment_of(self, entry: int) -> int:
        return bisect_right(self._firsts, entry) - 1

    def _usages_without(self, others: "array[int]") -> list[SegmentUsage]:
        """Add up the successes and tokens of each segment, without the entries in `others`."""
        left, width = array("Q", self._usages), len(_NO_USAGE)
        for entry in others:
            head = self._read(TOKENS_BYTES, self._position[entry] - TOKENS_BYTES)
            first = self._segment_of(entry) * width
            for place, used in enumerate((self._success[entry], *tokens_before(head)), start=first):
                left[place] -= used
        return [
            SegmentUsage(name, left[place], Tokens(*left[place + 1 : place + width]))
            for name, place in zip(self._segments, range(0, len(left), width), strict=True)
        ]

    def lines_by_segment(self, entries: "array[int]") -> Iterator[tuple[str, bytes]]:
        """Yield each of these entries as (storage key of its segment, line of the output or error file)."""
        for entry in entries:
            yield self._segments[self._segment_of(entry)], self.line(entry)

    def offsets_of(self, entries: "array[int]") -> "array[int]":
        """Return the offset in the input file of each entry's line."""
        return array("q", map(self._offset.__getitem__, entries))

    def dead_letters(self, selected: SelectedResults, limit: int = sys.maxsize) -> list[tuple[int, bytes]]:
        """Return at most `limit` dead letters of failed lines, sorted by offset in the input.

        Each item is (offset of the line in the input, dead letter). A dead letter records why the line
        failed. It is returned only if it is in the same segment as the line's selected result.
        """
        failed = self.offsets_of(selected.error) if self._dead_letters else array("q")
        found: list[tuple[int, bytes]] = []
        for offset, segment, position, length in self._dead_letters.sorted_by_offset():
            if len(found) == limit:
                break
            at = bisect_left(failed, offset)
            if at < len(failed) and failed[at] == offset and self._segment_of(selected.error[at]) == segment:
                found.append((offset, self._read(length, position)))
        return found

    def earlier_attempts(self, offset: int) -> Iterator[bytes]:
        """Yield the records of a line's attempts, without the last attempt, in no particular order.

        Args:
            offset: the line's position in the input.
        """
        return (self._read(length, position) for position, length in self._attempts.find(offset))

    def line_blocks(self, entries: "array[int]") -> Iterator[bytearray]:
        """Yield the lines of these entries as they are written to a file, in blocks of about 1 MiB."""
        block: list[tuple[int, int]] = []
        size = 0
        lengths, positions = self._length, self._position
        for entry in entries:
            length = lengths[entry]
            block.append((positions[entry], length))
            size += length + 1
            if size >= BLOCK_BYTES:
                yield self._spool.read_parts(block, _NEWLINE)
                block, size = [], 0
        if block:
            yield self._spool.read_parts(block, _NEWLINE)
