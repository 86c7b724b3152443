"""Cut a plan (one model's lines in the order of sending) into slices, which workers send.

A slice ends at the first of three limits: lines, bytes and work units (the estimated cost of its requests).
If a plan is small, lines with the same system prompt are put into the same slice if possible. Then a backend
that can cache only a few prompts computes each prompt less often.
"""

import math
from collections.abc import Sequence

from batchwright.rules.planning.plan_format import SliceRecord

MAX_SLICE_LINES = 1024
MAX_SLICE_BYTES = 4 * 1024 * 1024  # unless the slice is a single line
SLICE_WORK_UNITS = 16_384  # about 256 requests for 16,000 tokens each
MIN_LARGE_SLICE_LINES = 256  # minimum for slices of a large plan except the last ones; a segment has as many
# Limit for slices with more lines than that. A worker has memory for many such slices at once.
MAX_LARGE_SLICE_BYTES = 1024 * 1024
_REMAINING_DIVISOR = 8
# The last slices of a small plan have a quarter of the remaining lines. They have at least a quarter of the
# minimum number of lines and a 64th of the plan, because each slice costs time.
_LAST_DIVISOR = 4
_SMALLEST_PART = 64
# A plan with equal slices has at most so many. Temporal starts scheduled slices in any order. If the last one
# to start is long, one worker still has lines to send when the others have none. So slices must be short.
_EQUAL_SLICES = 32
_MIN_LINES = 32  # minimum number of lines of an equal slice
# In a plan with fewer lines than `_SMALL_PLAN`, a slice with at least `_SMALL_SLICE` lines also ends after so
# many work units. Requests for 10,000 tokens are then cut into slices of 18.
_SMALL_PLAN, _SMALL_SLICE = 128, 16
_SMALL_PLAN_UNITS = 768
_SMALL_SLICES = 256  # approximate number of slices in a batch if all have the minimum size


def min_equal_slice_lines(total: int) -> int:
    """Return the minimum number of lines of a slice if a model's lines are cut into equal slices.

    A slice is a part of a model's lines that one worker sends. For a small batch, the minimum is low, so that
    there are enough slices for several workers. For a large batch, the minimum is higher, because each slice
    costs time and there are enough slices anyway.

    Args:
        total: number of lines of the whole batch.
    """
    return min(max(_MIN_LINES, total // _SMALL_SLICES), MIN_LARGE_SLICE_LINES)


def next_slice_lines(plan: int, left: int, max_lines: int, min_lines: int) -> int:
    """Return how many lines the next slice of a plan may have. A plan lists the lines of a model.

    - A small plan is cut into equal slices, so that several workers get slices.
    - A large plan is first cut into large slices, because large slices take less time per line. A plan is
      large if equal slices would have more than `max_lines` lines.

    The last slices of any plan are smaller, so that all workers finish at about the same time.

    Args:
        plan: number of lines of the whole plan.
        left: number of lines of the plan that are in no slice yet.
        max_lines: maximum number of lines of a slice.
        min_lines: minimum number of lines of an equal slice. The last slices of a small plan may have fewer.
    """
    equal = math.ceil(plan / max(1, min(_EQUAL_SLICES, plan // min_lines)))
    if equal <= max_lines:
        smallest = max(min_lines // _LAST_DIVISOR, plan // _SMALLEST_PART)
        last = max(smallest, math.ceil(left / _LAST_DIVISOR))
        return plan if equal >= plan else min(equal, last)
    return min(max_lines, max(MIN_LARGE_SLICE_LINES, left // _REMAINING_DIVISOR))


def lines_alike(prefix_hashes: Sequence[int]) -> list[int]:
    """Return for each line the number of lines from this line to the end of its group.

    A group consists of neighbouring lines with the same system prompt. The results for a group of three lines
    are 3, 2 and 1.

    Args:
        prefix_hashes: hash of each line's system prompt; 0 for a line without one.
    """
    alike = [1] * len(prefix_hashes)
    for place in range(len(prefix_hashes) - 2, -1, -1):
        hash_ = prefix_hashes[place]
        if hash_ and hash_ == prefix_hashes[place + 1]:
            alike[place] = alike[place + 1] + 1
    return alike


class Slicer:
    """A slicer: it cuts a plan (the lines of one model in dispatch order) into slices, which workers run.

    Call `add` with each line in order, and `finish` at the end. A line that alone exceeds a limit becomes a
    slice of its own.
    """

    def __init__(
        self,
        max_lines: int,
        max_bytes: int = MAX_SLICE_BYTES,
        max_units: int = SLICE_WORK_UNITS,
        *,
        plan_lines: int | None = None,
        fewest: int = MIN_LARGE_SLICE_LINES,
    ) -> None:
        """Set the limits of a slice, which is a part of a plan (the lines of one model).

        Args:
            max_lines: maximum number of lines of a slice.
            max_bytes: maximum size of a slice's lines, in bytes.
            max_units: maximum number of work units (the estimated cost of the requests) of a slice.
            plan_lines: number of lines of the whole plan. `next_slice_lines` computes from it the maximum
                number of lines of each slice. If it is None, each slice may have `max_lines`.
            fewest: minimum number of lines of a slice if the plan is cut into equal slices.
        """
        self._most, self._max_bytes, self._max_units = max_lines, max_bytes, max_units
        self._plan_lines, self._fewest = plan_lines, fewest
        # Too small for equal slices: if the requests take long, a single slice would keep one worker busy for
        # minutes after the others have nothing left to send.
        is_very_small = plan_lines is not None and plan_lines < max(_SMALL_PLAN, 2 * fewest)
        self._small_units = min(max_units, _SMALL_PLAN_UNITS) if is_very_small else max_units
        self._smallest = max(_SMALL_SLICE, fewest // _LAST_DIVISOR)
        self._number = self._first_entry = self._shard_offset = 0
        self._entries = self._bytes = self._units = 0
        self._max_lines = self._lines()
        self._is_equal = plan_lines is not None and self._max_lines < min(max_lines, plan_lines)
        # The group consists of the last line and the lines with the same system prompt beside it.
        self._group_lines = self._group_left = 0  # how many are in the slice, and how many are not added yet
        self._whole_group = 0  # lines of the slice when it has the whole group; 0 if it cannot have it

    def add(self, length: int, units: int, alike: int = 1) -> SliceRecord | None:
        """Add the model's next line to the current slice, or begin a new slice with it.

        If the line fits into the current slice, add it and return None. If it does not fit, the current slice
        is complete: return it, and begin a new slice with the line. A line that alone exceeds a limit gets a
        slice of its own.

        Args:
            length: length of the line in bytes, with the newline.
            units: work units of the line, the estimated cost of its request.
            alike: result of `lines_alike` for the line. If the plan is cut into equal slices, each slice
                should end together with a group of lines with the same system prompt. Therefore a slice may
                have 75 % to 200 % of its usual number of lines.
        """
        size, work = self._bytes + length, self._units + units
        max_bytes = (
            self._max_bytes
            if self._entries < MIN_LARGE_SLICE_LINES
            else min(self._max_bytes, MAX_LARGE_SLICE_BYTES)
        )
        max_units = self._max_units if self._entries < self._smallest else self._small_units
        fits = size <= max_bytes and work <= max_units and self._has_place(alike)
        if fits or not self._entries:
            self._entries, self._bytes, self._units = self._entries + 1, size, work
            self._count_group(alike)
            return None
        ended = self._record()
        self._number += 1
        self._first_entry += self._entries
        self._shard_offset += self._bytes
        self._entries, self._bytes, self._units = 1, length, units
        self._max_lines = self._lines()
        self._whole_group = 0
        self._count_group(alike)
        return ended

    def finish(self) -> SliceRecord | None:
        """Return the last slice; None if no line was added."""
        return self._record() if self._entries else None

    def _lines(self) -> int:
        if self._plan_lines is None:
            return self._most
        left = self._plan_lines - self._first_entry
        return next_slice_lines(self._plan_lines, left, self._most, self._fewest)

    def _has_place(self, alike: int) -> bool:
        lines = self._max_lines
        if self._group_left:
            lines = max(lines, self._whole_group)
        elif self._is_equal and self._group_lines > 1 and self._entries + alike > lines:
            lines = lines * 3 // 4  # the slice ends with its last group, if it has as many lines
        return self._entries < lines

    def _count_group(self, alike: int) -> None:
        if self._group_left:
            self._group_lines += 1
        else:
            end = self._entries - 1 + alike
            fits = self._is_equal and end <= min(2 * self._max_lines, self._most)
            self._group_lines, self._whole_group = 1, end if fits else 0
        self._group_left = alike - 1

    def _record(self) -> SliceRecord:
        return SliceRecord(
            self._number, self._first_entry, self._shard_offset, self._entries, self._bytes, self._units
        )
