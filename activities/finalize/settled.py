"""Every settled line of a batch: its bytes on disk, 21 bytes of memory for each.

Arrays instead of objects: 50,000 lines take 1 MB, and 8 bytes a line more while they are put in order.
"""

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple, Self

from activities.finalize.order import in_input_order
from activities.finalize.spool import Spool
from batchwright.contracts.openai import Usage
from batchwright.rules.segments import (
    FINAL,
    SUCCESS,
    TOKENS_BYTES,
    Kind,
    Record,
    SegmentDamaged,
    SegmentWriter,
    Walked,
    tokens_before,
    walk_records,
)

BLOCK_BYTES = 1024 * 1024
_AT_ONCE = 4096  # records looked at
_NEWLINE = b"\n"
_OUR_OWN = "~"  # the segment of lines settled here: any other's name comes first


class Choice(NamedTuple):
    """One entry per line that has one, in input order; numbers of entries. `usage` is of these alone."""

    output: "array[int]"
    error: "array[int]"
    usage: Usage

    @property
    def lines(self) -> int:
        return len(self.output) + len(self.error)


class Finals:
    """Where the last attempts lie in the spool: 24 bytes for each."""

    def __init__(self) -> None:
        self._segment, self._length = array("I"), array("I")
        self._offset, self._position = array("q"), array("Q")

    def __len__(self) -> int:
        return len(self._offset)

    def add(self, segment: int, offset: int, position: int, length: int) -> None:
        """`position` is in the spool."""
        self._segment.append(segment)
        self._offset.append(offset)
        self._position.append(position)
        self._length.append(length)

    def in_order(self) -> Iterator[tuple[int, int, int, int]]:
        """Offset in the input, segment, position in the spool, length; by offset."""
        for entry in sorted(range(len(self)), key=self._offset.__getitem__):
            yield self._offset[entry], self._segment[entry], self._position[entry], self._length[entry]


class Settled:
    """Filled segment by segment, in whatever order they arrive; of a line's results `choose()` takes one.

    Used as a context: at its end nothing of it takes memory any more, whoever still holds it.
    """

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._clear()

    def _clear(self) -> None:
        self._segments: list[str] = []
        self._firsts = array("Q")  # of each segment, the first entry
        self._offset = array("q")
        self._position = array("Q")
        self._length = array("I")
        self._success = array("B")
        self._tokens = [0, 0, 0, 0]  # of all entries
        self._finals = Finals()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._clear()

    def __len__(self) -> int:
        return len(self._offset)

    def take(self, name: str, data: bytes) -> int:
        """The settled lines of a segment; how many. Of attempts, the last ones. Raises SegmentDamaged."""
        before, start = len(self), self._spool.append(data)
        self._segments.append(name)
        self._firsts.append(before)
        records = walk_records(data)
        try:
            while some := list(islice(records, _AT_ONCE)):
                self._take_records(start, some)
        except SegmentDamaged as error:
            raise SegmentDamaged(f"Segment {name!r} is damaged: {error}.") from error
        return len(self) - before

    def _take_records(self, start: int, records: list[Walked]) -> None:
        if any(record[0] != Kind.SETTLED for record in records):
            self._take_finals(len(self._segments) - 1, start, records)
            records = [record for record in records if record[0] == Kind.SETTLED]
        if records:
            self._take_columns(start, records)

    def _take_finals(self, segment: int, start: int, records: list[Walked]) -> None:
        for kind, flags, offset, position, length, *_ in records:
            if kind != Kind.SETTLED and flags & FINAL:
                self._finals.add(segment, offset, start + position, length)

    def _take_columns(self, start: int, records: list[Walked]) -> None:
        _, flags, offsets, positions, lengths, *tokens = zip(*records, strict=True)
        self._offset.extend(offsets)
        self._position.extend([start + position for position in positions])
        self._length.extend(lengths)
        self._success.extend([flag & SUCCESS for flag in flags])
        self._tokens = [sum(column, before) for column, before in zip(tokens, self._tokens, strict=True)]

    def add_errors(self, lines: Sequence[tuple[int, bytes]]) -> None:
        """Error lines made here, by input offset."""
        self.add([Record(Kind.SETTLED, offset, line) for offset, line in lines])

    def add(self, records: Iterable[Record]) -> None:
        """Results made here, and last attempts beside them."""
        writer = SegmentWriter()
        for record in records:
            writer.add(record)
        self.take(_OUR_OWN, writer.finish())

    def payload(self, entry: int) -> bytes:
        """The line of an entry."""
        return self._read(self._length[entry], self._position[entry])

    def _read(self, length: int, position: int) -> bytes:
        return bytes(self._spool.read_parts([(position, length)], b""))

    def choose(self) -> Choice:
        """Of duplicates success wins, then the segment whose name is lowest (S0-42)."""
        chosen, others = self._without_duplicates(in_input_order(self._offset))
        output, error = array("I"), array("I")
        success = self._success
        for entry in chosen:
            (output if success[entry] else error).append(entry)
        return Choice(output, error, self._usage_without(others))

    def _without_duplicates(self, ordered: "array[int]") -> tuple["array[int]", "array[int]"]:
        """Of each line one entry; and the others."""
        chosen, others, last = array("I"), array("I"), -1
        offsets = self._offset
        for entry in ordered:
            offset = offsets[entry]
            if offset != last:
                chosen.append(entry)
                last = offset
            elif self._rank(entry) < self._rank(chosen[-1]):
                others.append(chosen[-1])
                chosen[-1] = entry
            else:
                others.append(entry)
        return chosen, others

    def _rank(self, entry: int) -> tuple[bool, str]:
        """Among results of the same line: the lowest counts."""
        return not self._success[entry], self._segments[self._segment_of(entry)]

    def _segment_of(self, entry: int) -> int:
        return bisect_right(self._firsts, entry) - 1

    def _usage_without(self, others: "array[int]") -> Usage:
        left = self._tokens
        for entry in others:
            head = self._read(TOKENS_BYTES, self._position[entry] - TOKENS_BYTES)
            left = [sum_ - tokens for sum_, tokens in zip(left, tokens_before(head), strict=True)]
        return Usage(
            input_tokens=left[0], cached_tokens=left[1], output_tokens=left[2], reasoning_tokens=left[3]
        )

    def offsets_of(self, entries: "array[int]") -> "array[int]":
        """Where these are, in their order."""
        return array("q", map(self._offset.__getitem__, entries))

    def finals(self, choice: Choice, most: int = sys.maxsize) -> list[tuple[int, bytes]]:
        """Of failed lines that had a last attempt, by input offset: that attempt's record; `most` of them.

        An attempt counts where the chosen result is of its own segment.
        """
        failed = self.offsets_of(choice.error) if self._finals else array("q")
        found: list[tuple[int, bytes]] = []
        for offset, segment, position, length in self._finals.in_order():
            if len(found) == most:
                break
            at = bisect_left(failed, offset)
            if at < len(failed) and failed[at] == offset and self._segment_of(choice.error[at]) == segment:
                found.append((offset, self._read(length, position)))
        return found

    def blocks(self, entries: "array[int]") -> Iterator[bytearray]:
        """The entries' lines, a newline after each, in pieces of about a MiB."""
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
