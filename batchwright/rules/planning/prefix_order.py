"""Dispatch order: sort a model's lines so that lines with the same prompt prefix are sent after each other.

The prefix of a prompt is its system messages and tools. If lines with the same prefix have no other text in
common, the lines with the highest estimated cost come first. So a batch does not end with a few long
responses. Lines of equal cost keep the order of the input. Plans with more than 16,384 lines are not sorted
by cost.

Until the plan (the list of the lines in dispatch order) is written, each line takes 54 bytes in memory or, if
the input is large, on disk. The text of a line is read again only if another line has the same prefix and the
same sort key (`prompt_sort_keys.py`).
"""

import struct
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, groupby, starmap
from operator import itemgetter
from typing import Literal

from msgspec import Struct

from batchwright.rules.growing_bytes import GrowingBytes, NewBytes, rows_of, sorted_rows
from batchwright.rules.input.digest_set import DigestNumbers
from batchwright.rules.input.line_parser import reread_body
from batchwright.rules.planning.plan_format import PlanEntry
from batchwright.rules.planning.prompt_sort_keys import (
    SORT_KEY_BYTES,
    PromptSortKeys,
    common_bytes,
    common_with_first,
    covered_bytes,
    keys_with_in_common,
)
from batchwright.rules.planning.shared_prefix import Prompt, lexicographic_order, prompt_of, system_hash

PlanOrder = Literal["prefix", "hash", "file"]
ReadLine = Callable[[int, int], bytes]  # called with a line's offset and length; returns its bytes

_RECENT_BYTES = 2 * 1024 * 1024  # memory limit for prefixes that are kept as text
_ENTRY_OVERHEAD_BYTES = 200  # memory that a kept prefix takes in addition to its text
_ROW = struct.Struct(f">I{SORT_KEY_BYTES}sQIIH")  # rank, sort key, offset, length, prefix hash, work units
_pack_row = _ROW.pack
_KEY = 4 + SORT_KEY_BYTES
_PLACE = struct.Struct(f">{_KEY}xQIIH")  # the part of a row after the key
_NUMBERED = struct.Struct(f">I{_ROW.size - 4}s")
_RANK = struct.Struct(">I")
_PACKED = struct.Struct(f"{_ROW.size}s")
_UNITS = struct.Struct(">H")
_RANK_BYTES, _SORT_KEY, _OFFSET = slice(_RANK.size), slice(_RANK.size, _KEY), slice(_KEY, _KEY + 8)
# Lines of plans with at most so many lines are sorted by cost. In larger plans, the last responses take only
# a small part of the time.
_MAX_BY_COST = 16_384
# Larger plans keep the order of their texts, because the lines of a prefix would take too much memory.
_MAX_REORDERED = 65_536
# Neighbours that have so many bytes more in common than all lines of their prefix stay together.
_SHARED_BYTES = 128


class PlanLine(Struct, frozen=True, gc=False):
    """One line in dispatch order, the order in which a model's lines are sent.

    Attributes:
        offset: position of the line in the input, in bytes.
        length: length of the line in bytes, with the newline.
        prefix_hash: hash of the line's system prompt; 0 if it has none.
        work_units: estimated cost of the line's request.
    """

    offset: int
    length: int
    prefix_hash: int
    work_units: int

    @property
    def entry(self) -> PlanEntry:
        return PlanEntry(self.offset, self.length, self.prefix_hash)


class PromptPrefixes:
    """The distinct prefixes of a batch's prompts, numbered from 0 in the order of their first occurrence.

    A prefix is the system messages and tools of a prompt. The text of a prefix is not stored, only the
    position of the first line with this prefix.
    """

    def __init__(self) -> None:
        self._known = DigestNumbers()
        self._recent: dict[tuple[tuple[bytes, ...], bytes], int] = {}  # numbers of recently used prefixes
        self._recent_bytes = 0
        self._offsets = array("Q")
        self._lengths = array("I")
        self._hashes = array("I")
        self.sort_key = PromptSortKeys().key

    def intern(self, prompt: Prompt, offset: int, length: int) -> tuple[int, int]:
        """Return the number of the prompt's prefix, and the FNV-32a hash of its system prompt.

        A prefix is the system messages and tools. A new prefix gets the next number.

        Args:
            prompt: the prompt of a line.
            offset: position of the line in the input, in bytes. If the prefix is new, its text will be read
                from this line.
            length: length of the line, in bytes.
        """
        number = self._recent.get((prompt.system, prompt.tools))
        if number is not None:
            return number, self._hashes[number]
        shared = prompt.shared
        number, new = self._known.number(shared)
        size = len(shared) + _ENTRY_OVERHEAD_BYTES
        if self._recent_bytes + size > _RECENT_BYTES:
            self._recent.clear()
            self._recent_bytes = 0
        if size <= _RECENT_BYTES:
            self._recent[prompt.system, prompt.tools] = number
            self._recent_bytes += size
        if new:
            self._offsets.append(offset)
            self._lengths.append(length)
            self._hashes.append(system_hash(prompt))
        return number, self._hashes[number]

    def ranks(self, read_line: ReadLine) -> "array[int]":
        """Sort all prefixes by their text. Return the rank of each prefix in this order, from 0.

        A prefix is the system messages and tools of a prompt. The index in the result is the number that
        `intern` has given to the prefix.

        Args:
            read_line: returns the bytes of a line, given its offset and length in the input.
        """

        def read(number: int, start: int, width: int) -> bytes:
            prompt = reread_prompt(read_line(self._offsets[number], self._lengths[number]))
            return prompt.shared[start : start + width]

        ranks = array("I", [0]) * len(self._known)
        for rank, number in enumerate(lexicographic_order(range(len(ranks)), read)):
            ranks[number] = rank
        return ranks


class ModelLines:
    """The lines of one model, added in the order of the input and returned in the order of sending."""

    def __init__(self, order: PlanOrder, new_bytes: NewBytes = GrowingBytes) -> None:
        self._order: PlanOrder = order
        self._rows = new_bytes()

    def __len__(self) -> int:
        return len(self._rows) // _ROW.size

    def add(
        self, offset: int, length: int, prefix: int, prefix_hash: int, sort_key: bytes, units: int
    ) -> None:
        """Add a line of the input.

        Args:
            offset: position of the line in the input, in bytes.
            length: length of the line, in bytes.
            prefix: number of the prefix (system messages and tools) of the line's prompt, the first result of
                `PromptPrefixes.intern`.
            prefix_hash: hash of only the system prompt in this prefix, the second result of
                `PromptPrefixes.intern`.
            sort_key: bytes from `PromptPrefixes.sort_key` by which lines with the same prefix are sorted.
            units: estimated cost of the line's request (`request_work.work_units`).
        """
        rank = prefix
        if self._order != "prefix":
            rank, sort_key = prefix_hash if self._order == "hash" else 0, b""
        self._rows.append(_pack_row(rank, sort_key, offset, length, prefix_hash, units))

    def entries(self) -> Iterator[PlanEntry]:
        """Yield offset, length and hash of the system prompt of each line, in no particular order."""
        return (_plan_line(row).entry for row in rows_of(self._rows, _ROW.size))

    def in_order(self, ranks: "array[int]", read_line: ReadLine) -> Iterator[PlanLine]:
        """Return an iterator of the lines in dispatch order (the order of sending). Call this only once.

        The call sorts all lines first. For millions of lines, this takes seconds and uses the disk.

        Args:
            ranks: rank of each prefix (system messages and tools) in the order of texts, from
                `PromptPrefixes.ranks`.
            read_line: returns the bytes of a line, given its offset and length in the input.
        """
        rows = _in_text_order(
            sorted_rows(self._rows, _ROW.size, lambda run: self._sorted(run, ranks)), read_line
        )
        if self._order == "prefix" and len(self) <= _MAX_REORDERED:
            rows = _groups_in_order(rows, by_cost=len(self) <= _MAX_BY_COST)
        return starmap(PlanLine, map(_PLACE.unpack, rows))

    def _sorted(self, run: bytes, ranks: "array[int]") -> list[bytes]:
        if self._order != "prefix":
            return sorted(_rows_of(run))
        pack = _RANK.pack
        rows = [pack(ranks[number]) + row for number, row in _NUMBERED.iter_unpack(run)]
        rows.sort()
        return rows


def _rows_of(packed: bytes | bytearray) -> Iterator[bytes]:
    return (row for (row,) in _PACKED.iter_unpack(packed))


def _in_text_order(rows: Iterable[bytes], read_line: ReadLine) -> Iterator[bytes | bytearray]:
    """Sort packed lines (records of a fixed size) by the text of their prompts, and yield them.

    Args:
        rows: packed lines, already sorted by their prefix (system messages and tools) and then by sort key. A
            sort key depends only on the beginning of the text after the prefix. So lines with the same prefix
            and the same sort key still have to be sorted.
        read_line: returns the bytes of a line, given its offset and length in the input.
    """
    key, first, equal = b"", b"", bytearray()
    for row in rows:
        if first and row.startswith(key):
            equal += row if equal else first + row
            continue
        if equal:
            yield from _sorted_by_text(equal, read_line)
            equal = bytearray()
        elif first:
            yield first
        key, first = row[:_KEY], row
    if first:
        yield from _sorted_by_text(equal or bytearray(first), read_line)


def _sorted_by_text(rows: bytearray, read_line: ReadLine) -> Iterator[bytes | bytearray]:
    """Sort packed lines with the same prefix and sort key by the rest of their prompts, and yield them.

    The prompts are read again. If the sort key ends in a zero byte, it covers the whole prompt. Then the
    prompts are equal: they are not read again, and the lines keep their order.

    Args:
        rows: the lines as records of a fixed size.
        read_line: returns the bytes of a line, given its offset and length in the input.
    """
    if rows[:_KEY].endswith(b"\x00"):
        yield from _rows_of(rows)
        return

    def row(place: int) -> bytearray:
        return rows[place * _ROW.size : (place + 1) * _ROW.size]

    def read(place: int, start: int, width: int) -> bytes:
        line = _plan_line(row(place))
        return reread_prompt(read_line(line.offset, line.length)).rest[start : start + width]

    yield from map(
        row,
        lexicographic_order(
            range(len(rows) // _ROW.size), read, covered_bytes(rows[_KEY - SORT_KEY_BYTES : _KEY])
        ),
    )


def _groups_in_order(rows: Iterable[bytes | bytearray], *, by_cost: bool) -> Iterator[bytes | bytearray]:
    """Yield packed lines in a new order: among lines with the same prefix, expensive groups go first.

    A prefix is the system messages and tools of a prompt. The order of the prefixes does not change. The
    lines of a group are neighbours, and their texts after the prefix begin alike. Groups stay together,
    because backends can cache this common text, too. Two neighbouring lines with the same prefix are in the
    same group if one of two conditions is met:

    - Their sort keys are equal.
    - All texts after this prefix have their first N bytes in common, and the texts of these two lines have at
      least their first N + 128 bytes in common.

    The cost of a group is the cost of its most expensive line. Groups of equal cost are sorted by their first
    position in the input. The order within a group does not change.

    Args:
        rows: packed lines (records of a fixed size), sorted by the rank of their prefix and then by text.
        by_cost: False to sort the groups only by their first position in the input.
    """
    for _, of_prefix in groupby(rows, key=itemgetter(_RANK_BYTES)):
        lines = list(of_prefix)
        # Keys of texts that have little in common with the first text of the prefix are at both ends.
        least = _SHARED_BYTES + min(common_with_first(line[_SORT_KEY]) for line in (lines[0], lines[-1]))
        lowest, highest = keys_with_in_common(least)
        groups: list[list[bytes | bytearray]] = []
        before = None
        for line in lines:
            key = line[_SORT_KEY]
            is_alike = key == before
            if lowest <= key <= highest and before is not None and not is_alike:
                is_alike = common_bytes(before, key) >= least
            if is_alike:
                groups[-1].append(line)
            else:
                groups.append([line])
            before = key
        groups.sort(key=_first_offset)
        if by_cost:
            groups.sort(key=lambda group: max(map(_cost, group)), reverse=True)
        yield from chain.from_iterable(groups)


def _first_offset(group: Sequence[bytes | bytearray]) -> bytes | bytearray:
    """Return the lowest position of a group's lines in the input, as a big-endian number of 8 bytes."""
    return group[0][_OFFSET] if len(group) == 1 else min(line[_OFFSET] for line in group)


def _cost(row: bytes | bytearray) -> int:
    (units,) = _UNITS.unpack_from(row, _ROW.size - _UNITS.size)
    return units


def _plan_line(row: bytes | bytearray) -> PlanLine:
    return PlanLine(*_PLACE.unpack(row))


def reread_prompt(line: bytes) -> Prompt:
    """Return the prompt of a line that was validated earlier. The line is parsed again."""
    return prompt_of(reread_body(line))
