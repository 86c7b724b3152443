"""Dispatch order: a model's lines so that those with a common prompt prefix are neighbours (R17).

A line takes 54 bytes until its model's plan is written; its text stays on disk and is read again where the
notes of two texts (`beginnings.py`) do not tell which goes first.
"""

import heapq
import struct
from array import array
from collections.abc import Callable, Iterable, Iterator
from itertools import starmap
from typing import Literal

from msgspec import Struct

from batchwright.rules.beginnings import HEAD, Beginnings, told
from batchwright.rules.digests import Digests
from batchwright.rules.lines import read_body_again
from batchwright.rules.plan import PlanEntry
from batchwright.rules.prefix import Prompt, lexicographic, prompt_of, system_hash

PlanOrder = Literal["prefix", "hash", "file"]
ReadLine = Callable[[int, int], bytes]  # of a line's offset and length

_REMEMBERED = 2 * 1024 * 1024  # bytes of prefixes
_ONE_MORE = 200  # bytes that remembering one costs beside its own
_ROW = struct.Struct(f">I{HEAD}sQIIH")  # rank, note, offset, length, prefix hash, work units
_pack_row = _ROW.pack
_KEY = 4 + HEAD
_PLACE = struct.Struct(f">{_KEY}xQIIH")  # what follows the key
_NUMBERED = struct.Struct(f">I{_ROW.size - 4}s")
_RANK = struct.Struct(">I")
_PACKED = struct.Struct(f"{_ROW.size}s")
_RUN = 65_536 * _ROW.size  # bytes that are sorted at once: only so many rows are objects at a time


class PlanLine(Struct, frozen=True, gc=False):
    offset: int
    length: int
    prefix_hash: int
    work_units: int

    @property
    def entry(self) -> PlanEntry:
        return PlanEntry(self.offset, self.length, self.prefix_hash)


class Prefixes:
    """The distinct shared prefixes of a batch, each known by the first line that has it."""

    def __init__(self) -> None:
        self._known = Digests()
        self._recent: dict[tuple[tuple[bytes, ...], bytes], int] = {}  # many lines have the same
        self._remembered = 0
        self._offsets = array("Q")
        self._lengths = array("I")
        self._hashes = array("I")
        self._beginnings = Beginnings()

    def intern(self, prompt: Prompt, offset: int, length: int) -> tuple[int, int]:
        """The prefix's number and its system prompt's FNV-32a."""
        number = self._recent.get((prompt.system, prompt.tools))
        if number is not None:
            return number, self._hashes[number]
        shared = prompt.shared
        number, new = self._known.number(shared)
        self._remember(prompt, len(shared) + _ONE_MORE, number)
        if new:
            self._offsets.append(offset)
            self._lengths.append(length)
            self._hashes.append(system_hash(prompt))
        return number, self._hashes[number]

    def note(self, number: int, rest: bytes) -> bytes:
        """Where the rest of a prompt stands among those of its prefix, which was interned just now."""
        return self._beginnings.note(number, rest)

    def _remember(self, prompt: Prompt, size: int, number: int) -> None:
        if self._remembered + size > _REMEMBERED:
            self._recent.clear()
            self._remembered = 0
        if size <= _REMEMBERED:
            self._recent[prompt.system, prompt.tools] = number
            self._remembered += size

    def ranks(self, read_line: ReadLine) -> "array[int]":
        """Each prefix's place in the lexicographic order of all."""

        def read(number: int, start: int, width: int) -> bytes:
            prompt = prompt_again(read_line(self._offsets[number], self._lengths[number]))
            return prompt.shared[start : start + width]

        ranks = array("I", [0]) * len(self._known)
        for rank, number in enumerate(lexicographic(range(len(ranks)), read)):
            ranks[number] = rank
        return ranks


class ModelLines:
    """The lines of one model; added in the order of the file, given back in dispatch order."""

    def __init__(self, order: PlanOrder) -> None:
        self._order: PlanOrder = order
        self._rows = bytearray()

    def __len__(self) -> int:
        return len(self._rows) // _ROW.size

    def add(self, offset: int, length: int, prefix: int, prefix_hash: int, note: bytes, units: int) -> None:
        """`prefix` and `note` are what Prefixes gave it."""
        rank = prefix
        if self._order != "prefix":
            rank, note = prefix_hash if self._order == "hash" else 0, b""
        self._rows += _pack_row(rank, note, offset, length, prefix_hash, units)

    def entries(self) -> Iterator[PlanEntry]:
        """In no order, as often as one likes."""
        return (_plan_line(row).entry for row in _rows_of(self._rows))

    def in_order(self, ranks: "array[int]", read_line: ReadLine) -> Iterator[PlanLine]:
        """Once only; `ranks` are those of Prefixes."""
        rows = _in_text_order(self._in_key_order(ranks), read_line)
        return starmap(PlanLine, map(_PLACE.unpack, rows))

    def _in_key_order(self, ranks: "array[int]") -> Iterable[bytes]:
        if len(self._rows) <= _RUN:
            return self._sorted(0, ranks)
        starts = range(0, len(self._rows), _RUN)
        for start in starts:
            self._rows[start : start + _RUN] = b"".join(self._sorted(start, ranks))
        return heapq.merge(*map(self._run, starts))

    def _sorted(self, start: int, ranks: "array[int]") -> list[bytes]:
        if self._order != "prefix":
            return sorted(self._run(start))
        pack = _RANK.pack
        numbered = _NUMBERED.iter_unpack(memoryview(self._rows)[start : start + _RUN])
        rows = [pack(ranks[number]) + row for number, row in numbered]
        rows.sort()
        return rows

    def _run(self, start: int) -> Iterator[bytes]:
        return _rows_of(memoryview(self._rows)[start : start + _RUN])


def _rows_of(packed: bytearray | memoryview) -> Iterator[bytes]:
    return (row for (row,) in _PACKED.iter_unpack(packed))


def _in_text_order(rows: Iterable[bytes], read_line: ReadLine) -> Iterator[bytes | bytearray]:
    """Rows in the order of their keys; those of equal keys by the texts behind what their notes tell."""
    key, first, equal = b"", b"", bytearray()
    for row in rows:
        if first and row.startswith(key):
            equal += row if equal else first + row
            continue
        if equal:
            yield from _told_apart(equal, read_line)
            equal = bytearray()
        elif first:
            yield first
        key, first = row[:_KEY], row
    if first:
        yield from _told_apart(equal or bytearray(first), read_line)


def _told_apart(rows: bytearray, read_line: ReadLine) -> Iterator[bytes | bytearray]:
    """Rows of one key by the texts behind what their notes tell; a note that ends in zero told it all."""
    if rows[:_KEY].endswith(b"\x00"):
        yield from _rows_of(rows)
        return

    def row(place: int) -> bytearray:
        return rows[place * _ROW.size : (place + 1) * _ROW.size]

    def read(place: int, start: int, width: int) -> bytes:
        line = _plan_line(row(place))
        return prompt_again(read_line(line.offset, line.length)).rest[start : start + width]

    yield from map(row, lexicographic(range(len(rows) // _ROW.size), read, told(rows[_KEY - HEAD : _KEY])))


def _plan_line(row: bytes | bytearray) -> PlanLine:
    return PlanLine(*_PLACE.unpack(row))


def prompt_again(line: bytes) -> Prompt:
    """The prompt of a line that was accepted before."""
    return prompt_of(read_body_again(line))
