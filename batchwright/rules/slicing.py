"""Cutting a plan into slices: by lines, bytes and work units, whichever comes first."""

import math

from batchwright.rules.lines import Body, read_count
from batchwright.rules.plan import SliceRecord
from batchwright.rules.usual import UsualBody

SLICE_WORK_UNITS = 16_384  # about 256 requests for 16,000 tokens each
_UNIT_BYTES = 512
_UNIT_TOKENS = 256
MAX_WORK_UNITS = 0xFFFF
LEAST_LINES = 256  # of a large plan's slice that others follow; as many as a segment holds
GROWN_BYTES = 1024 * 1024  # of a slice with more lines: a worker has room for many such shards at once
_OF_WHAT_IS_LEFT = 8
_EQUAL_SLICES = 16  # of a plan: as many as four workers hold
_FEWEST_LINES, _ANSWERS = 64, 2  # of an equal slice; as many times a worker has requests in flight
_SMALL_SLICES = 256  # of all models of a batch, about


def work_units(body: Body | UsualBody, asked: int) -> int:
    """What a request costs a backend: by its prompt's bytes, `asked`, and the tokens it may make (S1-R1)."""
    tokens = _most_tokens(body) or _UNIT_TOKENS
    units = -(-asked // _UNIT_BYTES) - -tokens // _UNIT_TOKENS
    return units if units < MAX_WORK_UNITS else MAX_WORK_UNITS


def _most_tokens(body: Body | UsualBody) -> int | None:
    """That the answer may have, by the first of these fields that says it."""
    if isinstance(body, UsualBody):
        return body.max_completion_tokens or body.max_output_tokens or body.max_tokens or None
    return (
        read_count(body.max_completion_tokens)
        or read_count(body.max_output_tokens)
        or read_count(body.max_tokens)
    )


def fewest_lines(in_flight: int, total: int) -> int:
    """Of an equal slice, where a worker has `in_flight` requests of the model at once.

    It keeps a worker busy for two answers: long enough for the next one to be fetched meanwhile. A batch of
    `total` lines of many models has enough slices with larger ones.
    """
    return min(max(_FEWEST_LINES, _ANSWERS * in_flight, total // _SMALL_SLICES), LEAST_LINES)


def lines_of_next(plan: int, left: int, most: int, fewest: int) -> int:
    """How many lines the next slice of a plan of `plan` lines may have, of which `left` are in none yet.

    Workers hold several slices each. Of a small plan that is nearly all, so that it has equal ones, enough of
    them for several workers. A large plan has large ones first, which cost less, and small ones last, so that
    workers end together.
    """
    equal = math.ceil(plan / max(1, min(_EQUAL_SLICES, plan // fewest)))
    if equal <= most:
        return equal
    return min(most, max(LEAST_LINES, left // _OF_WHAT_IS_LEFT))


class Slicer:
    """Takes the plan's lines in order and gives a slice's record when it is complete.

    A line beyond a bound by itself is a slice of its own.
    """

    def __init__(
        self,
        max_lines: int,
        max_bytes: int,
        max_units: int = SLICE_WORK_UNITS,
        *,
        plan_lines: int | None = None,
        fewest: int = LEAST_LINES,
    ) -> None:
        """`plan_lines`: how many will come, of which each slice gets a share; None: all it may have.

        No share is less than `fewest` lines.
        """
        self._most, self._max_bytes, self._max_units = max_lines, max_bytes, max_units
        self._plan_lines, self._fewest = plan_lines, fewest
        self._number = self._first_entry = self._shard_offset = 0
        self._entries = self._bytes = self._units = 0
        self._max_lines = self._lines()

    def add(self, length: int, units: int) -> SliceRecord | None:
        """The slice that ends before this line, if one does."""
        size, work = self._bytes + length, self._units + units
        max_bytes = self._max_bytes if self._entries < LEAST_LINES else min(self._max_bytes, GROWN_BYTES)
        fits = self._entries < self._max_lines and size <= max_bytes and work <= self._max_units
        if fits or not self._entries:
            self._entries, self._bytes, self._units = self._entries + 1, size, work
            return None
        ended = self._record()
        self._number += 1
        self._first_entry += self._entries
        self._shard_offset += self._bytes
        self._entries, self._bytes, self._units = 1, length, units
        self._max_lines = self._lines()
        return ended

    def finish(self) -> SliceRecord | None:
        """The last slice; none of a plan without lines."""
        return self._record() if self._entries else None

    def _lines(self) -> int:
        if self._plan_lines is None:
            return self._most
        left = self._plan_lines - self._first_entry
        return lines_of_next(self._plan_lines, left, self._most, self._fewest)

    def _record(self) -> SliceRecord:
        return SliceRecord(
            self._number, self._first_entry, self._shard_offset, self._entries, self._bytes, self._units
        )
