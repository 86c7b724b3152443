"""Index of a running batch's results. It shows which lines are settled, and where each result is stored.

A line is settled if it has a final result. Results are stored in segments: objects with many results each.
The index reads only the end of each segment, which lists its records. A line takes 42 bytes of memory. Lines
are identified by their number, counted from 0 in input order.
"""

import asyncio
import time
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import NamedTuple

from batchwright.contracts.temporal_payloads.batch import BatchOrder
from batchwright.contracts.temporal_payloads.ingestion import IngestResult
from batchwright.rules.ids import RequestIds
from batchwright.rules.planning.duplicate_lines import copy_result, decode_duplicates
from batchwright.rules.planning.plan_format import walk_entries
from batchwright.rules.results.segment_format import (
    HEAD_BYTES,
    TRAILER_BYTES,
    IndexEntry,
    RecordKind,
    read_tail,
    record_payload,
    tail_bytes,
)
from batchwright.rules.stored_objects import object_keys
from batchwright.storage.base import ObjectInfo, ObjectMissing, Storage

_TAIL_BYTES = 8 * 1024  # the footer of a segment with 300 records
_READS_AT_ONCE = 8
_MAX_GAP = 16 * 1024  # maximum bytes between two results that are read with one request
_NONE = -1


class _Place(NamedTuple):
    """Position of a line's result in its segment (an object with results): first byte and length in bytes."""

    line: int
    position: int
    length: int


class _Span(NamedTuple):
    """Range of bytes in a segment that contains results: from `start` up to, but not including, `end`.

    `places` has the positions of these results. They stay the same if the index is refreshed during the read.
    """

    segment: int
    start: int
    end: int
    places: list[_Place]


class _Lines(NamedTuple):
    """The lines of a batch in input order.

    Attributes:
        offsets: for each line, its byte offset in the input file.
        originals: for each line, the number of the line whose result it gets. A duplicate line repeats an
            earlier line (the original), and gets its result. All other lines have their own number here.
        texts: for each duplicate line, the byte offset of its entry in `duplicates`; -1 for all other lines.
        duplicates: the list of duplicate lines, as ingestion has encoded and stored it.
        copied, copies: numbers of lines, sorted. Line `copies[n]` is a duplicate of line `copied[n]`.
    """

    offsets: "array[int]"
    originals: "array[int]"
    texts: "array[int]"
    duplicates: bytes
    copied: "array[int]"
    copies: "array[int]"

    def sharing_result(self, line: int) -> "array[int]":
        """Return the numbers of all lines that get the result of this line: itself and its duplicates."""
        first, end = bisect_left(self.copied, line), bisect_right(self.copied, line)
        return array("I", [line]) + self.copies[first:end]


class Settlement(NamedTuple):
    """A line that has got a result, and whether the result is a success or a failure."""

    line: int
    success: bool


class LiveIndex:
    """Shows where the results of a running batch are stored. All readers of the batch share one index.

    Results are in segments: objects that workers write while the batch runs.
    """

    def __init__(self, storage: Storage, order: BatchOrder, lines: _Lines, refresh_seconds: float) -> None:
        """Create an index without results. Do not call this: use `open_index`.

        Args:
            refresh_seconds: minimum time between two listings of the segments.
        """
        self._storage, self._order, self._lines = storage, order, lines
        self._root = object_keys.results_root(order.tenant, order.batch_id)
        count = len(lines.offsets)
        self._segment = array("i", [_NONE]) * count
        self._position, self._length = array("Q", [0]) * count, array("I", [0]) * count
        self._success = bytearray(count)
        self._settlements = array("I")  # each is twice the number of the line, plus 1 for a success
        self._known = bytearray(count)  # for each line, bits of its settlements: 1 a failure, 2 a success
        self._keys: list[str] = []  # keys of segments, by number; empty if a segment no longer exists
        self._numbers: dict[str, int] = {}
        self._refresh_seconds, self._refreshed_at = refresh_seconds, -refresh_seconds
        self._refreshing = asyncio.Lock()

    def __len__(self) -> int:
        return len(self._lines.offsets)

    def is_settled(self, line: int) -> bool:
        return self._segment[self._lines.originals[line]] != _NONE

    def is_success(self, line: int) -> bool:
        return bool(self._success[self._lines.originals[line]])

    def size(self, line: int) -> int:
        """Return the size of a line's result in bytes. A duplicate line has the size of its original."""
        return self._length[self._lines.originals[line]]

    def find(self, request_id: str) -> int | None:
        """Return the number of the line with this id (`batch_req_...`); None if there is no such line.

        This is slow: it takes about a microsecond for each line of the batch.
        """
        return next((line for line, id in enumerate(self.ids()) if id == request_id), None)

    def settlements(self, start: int, end: int) -> Iterator[Settlement]:
        """Yield lines that have succeeded or failed, in the order in which this index found their results.

        `start` and `end` are positions in this order; `end` itself is not included. Positions never change,
        but the index of another process may have another order. A line has at most one success and one
        failure. It has both if its success was found after its failure.
        """
        return (Settlement(entry >> 1, bool(entry & 1)) for entry in self._settlements[start:end])

    def ids(self) -> Iterator[str]:
        """Yield the id (`batch_req_...`) of each line, in input order."""
        return map(RequestIds(self._order.batch_id).of, self._lines.offsets)

    async def refresh(self) -> None:
        """Add the segments that were stored since the last refresh, and remove segments that no longer exist.

        Do nothing if the last refresh was less than `refresh_seconds` ago.

        Raises:
            SegmentDamaged: the end of a segment, which lists its results, is invalid.
        """
        async with self._refreshing:
            if time.monotonic() - self._refreshed_at < self._refresh_seconds:
                return
            await self._refresh()
            self._refreshed_at = time.monotonic()

    async def read(self, lines: Sequence[int]) -> list[bytes]:
        """Read the results of these lines from storage. Return each result as a line of a file, without
        newline.

        All lines must have a result.

        Raises:
            ObjectMissing: a segment was deleted, or merged into another segment, since the last refresh. Call
                `refresh` and try again. That refresh does not wait for `refresh_seconds`.
            SegmentDamaged: a result is damaged.
        """
        originals = self._lines.originals
        found: dict[int, bytes] = {}
        spans = self._spans({originals[line] for line in lines})
        for start in range(0, len(spans), _READS_AT_ONCE):
            some = spans[start : start + _READS_AT_ONCE]
            for span, data in zip(some, await asyncio.gather(*map(self._read_span, some)), strict=True):
                found.update(_payloads(span, data))
        return [self._result(line, found[originals[line]]) for line in lines]

    def _spans(self, lines: Iterable[int]) -> list[_Span]:
        """Return the byte ranges to read for the results of these lines. None of the lines may be a
        duplicate.

        Results that are close to each other in a segment share one range, so that there are fewer reads.
        """
        spans: list[_Span] = []
        for segment, start, line in sorted(
            (self._segment[line], self._position[line] - HEAD_BYTES, line) for line in lines
        ):
            place = _Place(line, self._position[line], self._length[line])
            end = place.position + place.length
            last = spans[-1] if spans else None
            if last is not None and last.segment == segment and start <= last.end + _MAX_GAP:
                last.places.append(place)
                spans[-1] = last._replace(end=end)
            else:
                spans.append(_Span(segment, start, end, [place]))
        return spans

    async def _read_span(self, span: _Span) -> bytes:
        key = self._keys[span.segment] if span.segment != _NONE else ""
        try:
            if not key:
                raise ObjectMissing(f"A segment of {self._order.batch_id} no longer exists.")
            return await self._storage.get(key, span.start, span.end - span.start)
        except ObjectMissing:
            self._refreshed_at = -self._refresh_seconds
            raise

    def _result(self, line: int, payload: bytes) -> bytes:
        at = self._lines.texts[line]
        if at == _NONE:
            return payload
        text = self._lines.duplicates
        [duplicate] = decode_duplicates([text[at : text.index(b"\n", at)]])
        id = RequestIds(self._order.batch_id).of(duplicate.offset)
        return copy_result(payload, id, duplicate.custom_id)

    async def _refresh(self) -> None:
        listed = {info.key: info async for info in self._storage.list(self._root)}
        gone = {key for key in self._numbers if key.startswith(self._root) and key not in listed}
        for key in gone:
            self._keys[self._numbers[key]] = ""
        # A merge stores the results of several segments of a slice again, in a new segment.
        merged = {key.rpartition("/")[0] for key in gone}
        wanted = [
            info
            for key, info in listed.items()
            if key not in self._numbers or key.rpartition("/")[0] in merged
        ]
        await self.add_segments(wanted)
        if gone:
            for line, segment in enumerate(self._segment):
                if segment != _NONE and not self._keys[segment]:
                    self._segment[line] = _NONE
        for key in gone:  # last, so that after an interruption the next refresh repeats this
            del self._numbers[key]

    async def add_segments(self, segments: Sequence[ObjectInfo]) -> None:
        """Add the results in these segments to the index. Skip segments that no longer exist.

        Raises:
            SegmentDamaged: the end of a segment, which lists its results, is invalid.
        """
        for start in range(0, len(segments), _READS_AT_ONCE):
            some = segments[start : start + _READS_AT_ONCE]
            for info, entries in zip(some, await asyncio.gather(*map(self._entries, some)), strict=True):
                if entries is not None:
                    self._add(info.key, entries)

    async def _entries(self, info: ObjectInfo) -> list[IndexEntry] | None:
        return await read_entries(self._storage, info)

    def _add(self, key: str, entries: Iterable[IndexEntry]) -> None:
        number = self._numbers.setdefault(key, len(self._keys))
        if number == len(self._keys):
            self._keys.append(key)
        offsets = self._lines.offsets
        for kind, success, offset, length, position in entries:
            line = bisect_left(offsets, offset)
            if kind is not RecordKind.SETTLED or line == len(offsets) or offsets[line] != offset:
                continue
            if self._counts(line, success, key):
                self._segment[line], self._position[line] = number, position
                self._length[line], self._success[line] = length, success
                self._record_settlement(line, success)

    def _record_settlement(self, line: int, success: bool) -> None:
        kind = 2 if success else 1
        if not self._known[line] & kind:
            self._known[line] |= kind
            self._settlements.extend(each << 1 | success for each in self._lines.sharing_result(line))

    def _counts(self, line: int, success: bool, key: str) -> bool:
        """Return True if this result must replace the result of the line in the index, or if the index has
        none.

        The rule is the same as when the batch's files are written. A success replaces a failure. Of two
        successes or two failures, the result in the segment with the smaller key is used.

        Args:
            key: storage key of the segment that contains this result.
        """
        segment = self._segment[line]
        known = self._keys[segment] if segment != _NONE else ""
        return not known or (not success, key) < (not self._success[line], known)


def _payloads(span: _Span, data: bytes) -> dict[int, bytes]:
    view, found = memoryview(data), dict[int, bytes]()
    for line, position, length in span.places:
        at = position - span.start
        found[line] = record_payload(view[at - HEAD_BYTES : at + length])
    return found


async def open_index(
    storage: Storage, order: BatchOrder, ingested: IngestResult, refresh_seconds: float
) -> LiveIndex:
    """Create the index of a running batch. It contains the results that ingestion itself has stored.

    Args:
        ingested: result of ingestion, the step that read the input. It contains where the plans (lists of
            lines) are stored.
        refresh_seconds: minimum time between two listings of the batch's segments.

    Raises:
        ObjectMissing: the plans no longer exist, because the batch has ended.
        PlanDamaged, SegmentDamaged: a stored object is damaged.
    """
    prefix = ingested.ingest_prefix
    offsets, duplicates = array("q"), bytearray()
    for share in ingested.models:
        plan = await storage.get(object_keys.plan(prefix, share.safe_model))
        offsets.extend(await asyncio.to_thread(_plan_offsets, plan))
        if share.duplicates:
            duplicates += await storage.get(object_keys.duplicates(prefix, share.safe_model))
    segments = [info async for info in _ingested_segments(storage, ingested)]
    for info in segments:
        entries = await read_entries(storage, info) or []
        offsets.extend([entry.offset for entry in entries if entry.kind is RecordKind.SETTLED])
    lines = await asyncio.to_thread(_lines, offsets, bytes(duplicates))
    index = LiveIndex(storage, order, lines, refresh_seconds)
    await index.add_segments(segments)
    return index


async def read_entries(storage: Storage, info: ObjectInfo) -> list[IndexEntry] | None:
    """Return an index entry for each result in a segment; None if the segment no longer exists.

    Only the end of the segment is read, which lists the results.

    Raises:
        SegmentDamaged: the end of the segment is invalid.
    """
    try:
        tail = await storage.get(info.key, max(info.size - _TAIL_BYTES, 0))
        needed = tail_bytes(tail[-TRAILER_BYTES:])
        if needed > len(tail):
            tail = await storage.get(info.key, max(info.size - needed, 0))
    except ObjectMissing:
        return None
    return read_tail(tail, info.size)


async def _ingested_segments(storage: Storage, ingested: IngestResult) -> AsyncIterator[ObjectInfo]:
    if ingested.unserved:
        yield await storage.stat(object_keys.unserved_segment(ingested.ingest_prefix))
    if ingested.resumed:
        async for info in storage.list(object_keys.resumed_root(ingested.ingest_prefix)):
            yield info


def _plan_offsets(plan: bytes) -> "array[int]":
    return array("q", [offset for offset, _, _ in walk_entries(plan)])


def _lines(sent: "array[int]", duplicates: bytes) -> _Lines:
    """Return all lines of a batch in input order, including duplicates.

    Args:
        sent: byte offsets in the input file of all lines that are not duplicates, in any order.
        duplicates: the list of duplicates, encoded as ingestion stored it.
    """
    starts, firsts, at = dict[int, int](), dict[int, int](), 0
    for text in duplicates.splitlines(keepends=True):
        for duplicate in decode_duplicates([text]):
            starts[duplicate.offset], firsts[duplicate.offset] = at, duplicate.first
        at += len(text)
    offsets = array("q", sorted([*sent, *starts]))
    originals = array("I", range(len(offsets)))
    texts = array("q", [_NONE]) * len(offsets)
    pairs: list[tuple[int, int]] = []
    for offset, start in starts.items():
        line = bisect_left(offsets, offset)
        originals[line], texts[line] = bisect_left(offsets, firsts[offset]), start
        pairs.append((originals[line], line))
    pairs.sort()
    copied, copies = (array("I", [pair[n] for pair in pairs]) for n in range(2))
    return _Lines(offsets, originals, texts, duplicates, copied, copies)
