"""Cutting a plan into slices: by lines, bytes and work units, whichever comes first."""

import math

from batchwright.rules.lines import Body, read_count, written
from batchwright.rules.plan import SliceRecord

SLICE_WORK_UNITS = 16_384  # about 256 requests for 16,000 tokens each
_UNIT_BYTES = 512
_UNIT_TOKENS = 256
MAX_WORK_UNITS = 0xFFFF


def work_units(body: Body) -> int:
    """What a request costs a backend: by the size of its prompt and the tokens it may make (S1-R1)."""
    prompt = written(body.messages) + written(body.input) + written(body.prompt)
    tokens = (
        read_count(body.max_completion_tokens)
        or read_count(body.max_output_tokens)
        or read_count(body.max_tokens)
        or _UNIT_TOKENS
    )
    return min(math.ceil(prompt / _UNIT_BYTES) + math.ceil(tokens / _UNIT_TOKENS), MAX_WORK_UNITS)


class Slicer:
    """Takes the plan's lines in order and gives a slice's record when it is complete.

    A line beyond a bound by itself is a slice of its own.
    """

    def __init__(self, max_lines: int, max_bytes: int, max_units: int = SLICE_WORK_UNITS) -> None:
        self._max = (max_lines, max_bytes, max_units)
        self._open = SliceRecord(0, 0, 0, 0, 0, 0)

    def add(self, length: int, units: int) -> SliceRecord | None:
        """The slice that ends before this line, if one does."""
        last = self._open
        entries, size, work = last.entries + 1, last.shard_bytes + length, last.work_units + units
        max_lines, max_bytes, max_units = self._max
        if not last.entries or (entries <= max_lines and size <= max_bytes and work <= max_units):
            self._open = SliceRecord(last.number, last.first_entry, last.shard_offset, entries, size, work)
            return None
        self._open = SliceRecord(
            number=last.number + 1,
            first_entry=last.first_entry + last.entries,
            shard_offset=last.shard_offset + last.shard_bytes,
            entries=1,
            shard_bytes=length,
            work_units=units,
        )
        return last

    def finish(self) -> SliceRecord | None:
        """The last slice; none of a plan without lines."""
        return self._open if self._open.entries else None
