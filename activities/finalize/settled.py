"""Every settled line of a batch: its bytes on disk, 41 bytes of memory for each.

Arrays instead of objects: 50,000 lines take 2 MB, and as much again for a moment while they are sorted.
"""

from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from activities.finalize.spool import Spool
from batchwright.contracts.openai import Usage
from batchwright.rules.segments import Kind, Record, SegmentDamaged, read_records

BLOCK_BYTES = 1024 * 1024
_OUR_OWN = "~"  # the segment of lines settled here: any other's name comes first


class Choice(NamedTuple):
    """One entry per line that has one, in input order; numbers of entries."""

    output: "array[int]"
    error: "array[int]"

    @property
    def lines(self) -> int:
        return len(self.output) + len(self.error)


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
        self._usage = tuple(array("I") for _ in range(4))

    def __len__(self) -> int:
        return len(self._offset)

    def take(self, name: str, data: bytes) -> int:
        """The settled lines of a segment; how many. Attempts are passed over. Raises SegmentDamaged."""
        try:
            records = [record for record in read_records(data) if record.kind is Kind.SETTLED]
        except SegmentDamaged as error:
            raise SegmentDamaged(f"Segment {name!r} is damaged: {error}.") from error
        self._add(name, records)
        return len(records)

    def add_errors(self, lines: Sequence[tuple[int, bytes]]) -> None:
        """Error lines made here, by input offset."""
        self._add(_OUR_OWN, [Record(Kind.SETTLED, offset, line) for offset, line in lines])

    def choose(self) -> Choice:
        """Of duplicates success wins, then the segment whose name is lowest (S0-42)."""
        output, error, last = array("I"), array("I"), -1
        for key in self._ordered():
            offset, entry = key >> 65, key & 0xFFFF_FFFF
            if offset != last:
                (output if self._success[entry] else error).append(entry)
            last = offset
        return Choice(output, error)

    def offsets(self) -> "array[int]":
        """Where the settled lines are in the input, ascending; duplicates stay."""
        return array("q", sorted(self._offset))

    def usage(self, choice: Choice) -> Usage:
        sums = [sum(column[i] for part in choice for i in part) for column in self._usage]
        return Usage(
            input_tokens=sums[0], cached_tokens=sums[1], output_tokens=sums[2], reasoning_tokens=sums[3]
        )

    def blocks(self, entries: "array[int]") -> Iterator[bytes]:
        """The entries' lines, a newline after each, in pieces of about a MiB."""
        pieces: list[bytes] = []
        size = 0
        for start, end in self._runs(entries):
            pieces.append(self._spool.read(start, end - start))
            size += end - start
            if size >= BLOCK_BYTES:
                yield b"".join(pieces)
                pieces, size = [], 0
        if pieces:
            yield b"".join(pieces)

    def _runs(self, entries: "array[int]") -> Iterator[tuple[int, int]]:
        """Ranges of the spool; neighbours become one read."""
        start = end = 0
        for entry in entries:
            position, length = self._position[entry], self._length[entry]
            if position != end or end - start >= BLOCK_BYTES:
                if end > start:
                    yield start, end
                start = end = position
            end += length
        if end > start:
            yield start, end

    def _add(self, name: str, records: list[Record]) -> None:
        number = len(self._segments)
        self._segments.append(name)
        position = self._spool.append([piece for record in records for piece in (record.payload, b"\n")])
        for record in records:
            self._segment.append(number)
            self._offset.append(record.offset)
            self._position.append(position)
            self._length.append(len(record.payload) + 1)
            self._success.append(record.success)
            self._note_usage(record.usage)
            position += len(record.payload) + 1

    def _note_usage(self, usage: Usage) -> None:
        tokens = (usage.input_tokens, usage.cached_tokens, usage.output_tokens, usage.reasoning_tokens)
        for column, count in zip(self._usage, tokens, strict=True):
            column.append(count)

    def _ordered(self) -> list[int]:
        """A number per entry that sorts by offset, then success, then segment name, and ends in the entry."""
        ranks = array("I", bytes(4 * len(self._segments)))
        for rank, number in enumerate(sorted(range(len(self._segments)), key=self._segments.__getitem__)):
            ranks[number] = rank
        columns = zip(self._offset, self._success, self._segment, strict=True)
        keys = [
            offset << 65 | (1 - success) << 64 | ranks[segment] << 32 | entry
            for entry, (offset, success, segment) in enumerate(columns)
        ]
        keys.sort()
        return keys
