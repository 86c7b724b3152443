"""Detect duplicates: lines with the same model and request as an earlier line.

A duplicate is not sent. At the end of the batch, it gets a copy of the earlier line's result.
"""

from array import array
from collections.abc import Iterator

from batchwright.rules.input.digest_set import DigestNumbers
from batchwright.rules.input.line_parser import parse_line, read_request
from batchwright.rules.input.line_splitter import InputLine
from batchwright.rules.planning.duplicate_list import Duplicate
from batchwright.rules.planning.equal_requests import canonical_body
from batchwright.rules.planning.prefix_order import ReadLine


class DuplicatePositions:
    """The positions of one model's duplicate lines in the input. Each line takes 20 bytes of memory.

    Attributes:
        offsets: position of each duplicate line, in bytes.
        lengths: length of each duplicate line, in bytes.
        firsts: position of the earlier line that each duplicate line repeats, in bytes.
    """

    def __init__(self) -> None:
        self.offsets, self.lengths, self.firsts = array("Q"), array("I"), array("Q")

    def __len__(self) -> int:
        return len(self.offsets)


class DuplicateDetector:
    """A detector of duplicates: lines with the same model and request as an earlier line.

    It needs 51 bytes of memory for each distinct request.
    """

    def __init__(self) -> None:
        self._seen = DigestNumbers()
        self._firsts = array("Q")
        self._models: dict[str, DuplicatePositions] = {}

    def __len__(self) -> int:
        return sum(map(len, self._models.values()))

    def add(self, line: InputLine, model: str) -> bool:
        """Record the line. Return True if an earlier line has the same model and request."""
        _, body = read_request(line.data or b"")
        number, is_new = self._seen.number(model.encode() + b"\x00" + canonical_body(body))
        if is_new:
            self._firsts.append(line.offset)
            return False
        positions = self._models.setdefault(model, DuplicatePositions())
        positions.offsets.append(line.offset)
        positions.lengths.append(line.length)
        positions.firsts.append(self._firsts[number])
        return True

    def positions(self, model: str) -> DuplicatePositions:
        return self._models.get(model) or DuplicatePositions()


def read_duplicates(
    positions: DuplicatePositions, read: ReadLine, start: int, count: int
) -> Iterator[Duplicate]:
    """Yield duplicate lines with their custom_ids, which are read from the input.

    At most `count` lines are yielded, beginning with the line of index `start` in `positions`.

    Args:
        read: returns a line of the input, given its offset and length.
    """
    for number in range(start, min(start + count, len(positions))):
        offset = positions.offsets[number]
        line = parse_line(read(offset, positions.lengths[number]))
        yield Duplicate(offset, positions.firsts[number], line.custom_id)
