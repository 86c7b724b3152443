"""Every settled line of a batch: its bytes on disk, 41 bytes of memory for each.

Arrays instead of objects: 50,000 lines take 2 MB, and as much again for a moment while they are sorted. More
are sorted a run at a time, for Python's own numbers take ten times as much.
"""

import heapq
import sys
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from activities.finalize.spool import Spool
from batchwright.contracts.openai import Usage
from batchwright.rules.segments import Kind, Located, Record, SegmentDamaged, SegmentWriter, locate_records

BLOCK_BYTES = 1024 * 1024
_RUN = 65_536  # entries sorted at once
_NEWLINE = ord("\n")
_OUR_OWN = "~"  # the segment of lines settled here: any other's name comes first


class Choice(NamedTuple):
    """One entry per line that has one, in input order; numbers of entries."""

    output: "array[int]"
    error: "array[int]"

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

    def add(self, segment: int, start: int, record: Located) -> None:
        """Of a segment that begins at `start` of the spool."""
        self._segment.append(segment)
        self._offset.append(record.offset)
        self._position.append(start + record.position)
        self._length.append(record.length)

    def in_order(self) -> Iterator[tuple[int, int, int, int]]:
        """Offset in the input, segment, position in the spool, length; by offset."""
        for entry in sorted(range(len(self)), key=self._offset.__getitem__):
            yield self._offset[entry], self._segment[entry], self._position[entry], self._length[entry]


class Settled:
    """Filled segment by segment, in whatever order they arrive; of a line's results `choose()` takes one."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._segments: list[str] = []
        self._segment = array("I")
        self._offset = array("q")
        self._position = array("Q")
        self._length = array("I")
        self._success = array("B")
        self._tokens = tuple(array("I") for _ in range(4))
        self._finals = Finals()

    def __len__(self) -> int:
        return len(self._offset)

    def take(self, name: str, data: bytes) -> int:
        """The settled lines of a segment; how many. Of attempts, the last ones. Raises SegmentDamaged."""
        try:
            found = list(locate_records(data))
        except SegmentDamaged as error:
            raise SegmentDamaged(f"Segment {name!r} is damaged: {error}.") from error
        records = [record for record in found if record.kind == Kind.SETTLED]
        start = self._spool.append(data)
        number = len(self._segments)
        for record in found:
            if record.final:
                self._finals.add(number, start, record)
        self._segments.append(name)
        self._segment.extend(number for _ in records)
        self._offset.extend(record.offset for record in records)
        self._position.extend(start + record.position for record in records)
        self._length.extend(record.length for record in records)
        self._success.extend(record.success for record in records)
        for which, column in enumerate(self._tokens):
            column.extend(record.tokens[which] for record in records)
        return len(records)

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
        line = bytearray(self._length[entry])
        self._spool.read_into(memoryview(line), self._position[entry])
        return bytes(line)

    def choose(self) -> Choice:
        """Of duplicates success wins, then the segment whose name is lowest (S0-42)."""
        output, error, last = array("I"), array("I"), -1
        for entry in self._ordered():
            offset = self._offset[entry]
            if offset != last:
                (output if self._success[entry] else error).append(entry)
            last = offset
        return Choice(output, error)

    def offsets(self) -> "array[int]":
        """Where the settled lines are in the input, ascending; duplicates stay."""
        runs = [array("q", sorted(self._offset[start:end])) for start, end in self._runs()]
        return array("q", heapq.merge(*runs))

    def offsets_of(self, entries: "array[int]") -> "array[int]":
        """Where these are, in their order."""
        return array("q", map(self._offset.__getitem__, entries))

    def usage(self, choice: Choice) -> Usage:
        sums = [sum(column[i] for part in choice for i in part) for column in self._tokens]
        return Usage(
            input_tokens=sums[0], cached_tokens=sums[1], output_tokens=sums[2], reasoning_tokens=sums[3]
        )

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
            if at < len(failed) and failed[at] == offset and self._segment[choice.error[at]] == segment:
                payload = bytearray(length)
                self._spool.read_into(memoryview(payload), position)
                found.append((offset, bytes(payload)))
        return found

    def blocks(self, entries: "array[int]") -> Iterator[bytearray]:
        """The entries' lines, a newline after each, in pieces of about a MiB."""
        block: list[int] = []
        size = 0
        for entry in entries:
            block.append(entry)
            size += self._length[entry] + 1
            if size >= BLOCK_BYTES:
                yield self._block(block, size)
                block, size = [], 0
        if block:
            yield self._block(block, size)

    def _block(self, entries: list[int], size: int) -> bytearray:
        block = bytearray(size)
        view, at = memoryview(block), 0
        for entry in entries:
            end = at + self._length[entry]
            self._spool.read_into(view[at:end], self._position[entry])
            block[end] = _NEWLINE
            at = end + 1
        return block

    def _ordered(self) -> Iterator[int]:
        """Entries by offset, then success, then the name of their segment."""
        ranks = array("I", bytes(4 * len(self._segments)))
        for rank, number in enumerate(sorted(range(len(self._segments)), key=self._segments.__getitem__)):
            ranks[number] = rank

        def place(entry: int) -> int:
            order = (1 - self._success[entry]) << 32 | ranks[self._segment[entry]]
            return self._offset[entry] << 33 | order

        runs = [array("I", sorted(range(start, end), key=place)) for start, end in self._runs()]
        return heapq.merge(*runs, key=place) if len(runs) > 1 else iter(runs[0] if runs else ())

    def _runs(self) -> list[tuple[int, int]]:
        return [(start, min(start + _RUN, len(self))) for start in range(0, len(self), _RUN)]
