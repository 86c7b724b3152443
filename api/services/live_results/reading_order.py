"""Selects which results of a running batch to send next: in input order, or in the order in which lines
settle.

A line settles when its final result is stored.
"""

from collections.abc import Callable
from typing import NamedTuple

from batchwright.api.services.live_results.settled_line_index import LiveIndex

_WINDOW_LINES, _WINDOW_BYTES = 1024, 1024 * 1024  # a reader holds about three times as many bytes
_LOOKED_AT_ONCE = 16_384  # number of lines, which take about 5 ms


class Window(NamedTuple):
    """A group of lines whose results are read from storage together.

    Attributes:
        lines: numbers of the lines. The list is empty if the search has found only results of the other kind:
            failures if successes are requested, or successes if failures are requested.
        end: position at which the next search must start. It is a line number for `next_in_input_order`, and
            a result number for `next_settled`.
    """

    lines: list[int]
    end: int


NextWindow = Callable[[LiveIndex, int, bool], Window | None]


def next_in_input_order(index: LiveIndex, start: int, success: bool) -> Window | None:
    """Return the lines whose results to send next in input order: from line number `start` up to the first
    line without a result.

    The returned window contains only successful lines, or only failed lines if `success` is False. It is
    limited to `_WINDOW_LINES` lines and about `_WINDOW_BYTES` bytes. Return None if the line `start` has no
    result or does not exist.
    """
    lines, size, end = list[int](), 0, start
    most = min(len(index), start + _LOOKED_AT_ONCE)
    while end < most and len(lines) < _WINDOW_LINES and size < _WINDOW_BYTES and index.is_settled(end):
        if index.is_success(end) == success:
            lines.append(end)
            size += index.size(end)
        end += 1
    return Window(lines, end) if end > start else None


def next_settled(index: LiveIndex, start: int, success: bool) -> Window | None:
    """Return the lines whose results to send next, beginning with result number `start`. Results are numbered
    in the order in which the index found them in storage.

    The returned window contains only successful lines, or only failed lines if `success` is False. It is
    limited to `_WINDOW_LINES` lines and about `_WINDOW_BYTES` bytes.

    Return None in two cases:

    - Result number `start` does not exist yet.
    - The segment (stored object) with this result was merged into another segment. The index has not read the
      other segment yet.
    """
    lines, size, end = list[int](), 0, start
    for settled in index.settlements(start, start + _LOOKED_AT_ONCE):
        if len(lines) >= _WINDOW_LINES or size >= _WINDOW_BYTES:
            break
        # A success replaces a failure that was found before, and has a settlement of its own.
        if settled.success == success == index.is_success(settled.line):
            if not index.is_settled(settled.line):
                break
            lines.append(settled.line)
            size += index.size(settled.line)
        end += 1
    return Window(lines, end) if end > start else None
