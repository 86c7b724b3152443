"""An index of a running batch's results. It shows which lines are settled, and where each result is stored.

A line is settled if it has a final result. Results are stored in segments: objects with many results each.
The end of a segment lists its results, so the index reads only this end.

Lines are identified by their number, counted from 0 in input order. A line takes 38 bytes. Indexes with up to
1.7 million lines together are in memory. Further indexes are on the local disk, except small ones.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import closing
from typing import NamedTuple

from batchwright.api.services.live_results.lines_of_input import BatchLines, LineCollector
from batchwright.contracts.temporal_payloads.batch import BatchOrder
from batchwright.contracts.temporal_payloads.ingestion import IngestResult
from batchwright.rules.ids import RequestIds
from batchwright.rules.planning.plan_format import ENTRY_BYTES
from batchwright.rules.results.output_lines import copy_result
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
from batchwright.storage.spill.columns import Columns, ColumnSpace

_TAIL_BYTES = 8 * 1024  # the footer of a segment with 300 records
_READS_AT_ONCE = 8
_MAX_GAP = 16 * 1024  # maximum bytes between two results that are read with one request
_LINES_PER_RELEASE = 65_536
BYTES_PER_LINE = 38  # size of an index, if no line is a duplicate


class _Place(NamedTuple):
    """The position of a line's result in its segment (an object with results), in bytes."""

    line: int
    position: int
    length: int


class _Span(NamedTuple):
    """A range of bytes in a segment (an object with results): from `start` up to, but not including, `end`.

    `places` has the positions of the results to read from this range. A refresh of the index during the read
    does not change these positions, because they are copies.
    """

    segment: int
    start: int
    end: int
    places: list[_Place]


class Settlement(NamedTuple):
    """A line that has got a result, and whether the result is a success or a failure."""

    line: int
    success: bool


class LiveIndex:
    """An index that shows where the results of a running batch are stored. All readers of the batch share one
    index.

    Results are in segments: objects that workers write while the batch runs.
    """

    def __init__(
        self,
        storage: Storage,
        order: BatchOrder,
        lines: BatchLines,
        columns: Columns,
        refresh_seconds: float,
    ) -> None:
        """Create an index without results. Do not call this: use `open_index`.

        Args:
            columns: new arrays from `_result_columns`, in which all numbers are still 0.
            refresh_seconds: minimum time between two listings of the segments.
        """
        self._storage, self._order, self._lines = storage, order, lines
        self._root = object_keys.results_root(order.tenant, order.batch_id)
        self._columns = columns
        # `_known` has bits of each line's settlements: 1 a failure, 2 a success. A settlement is twice the
        # number of the line, plus 1 for a success. A line has at most two.
        self._segment, self._position, self._length, self._success, self._known, self._settlements = (
            columns.views
        )
        self._settled = 0  # number of settlements
        self._keys = [""]  # keys of segments, by number; empty if there is none, or no longer
        self._numbers: dict[str, int] = {}
        self._used = 0  # lines looked up since pages of the columns were released
        self._refresh_seconds, self._refreshed_at = refresh_seconds, -refresh_seconds
        self._refreshing = asyncio.Lock()

    def __len__(self) -> int:
        return len(self._lines.offsets)

    @property
    def is_on_disk(self) -> bool:
        return self._columns.is_file or self._lines.columns.is_file

    def is_settled(self, line: int) -> bool:
        return self._keys[self._segment[self._lines.original(line)]] != ""

    def is_success(self, line: int) -> bool:
        return bool(self._success[self._lines.original(line)])

    def size(self, line: int) -> int:
        """Return the size of a line's result in bytes. A duplicate has the result of its original line."""
        return self._length[self._lines.original(line)]

    def find(self, request_id: str) -> int | None:
        """Return the number of the line with this id (`batch_req_...`); None if there is no such line.

        This is slow: it takes about a microsecond for each line of the batch.
        """
        return next((line for line, id in enumerate(self.ids()) if id == request_id), None)

    def settlements(self, start: int, end: int) -> Iterator[Settlement]:
        """Yield settled lines in the order in which this index found their results.

        If this index found first a failure and then a success of a line, the line is yielded for each of the
        two. Indexes in other processes can have another order.

        Args:
            start: position of the first line in this order, from 0. Positions never change.
            end: position after the last line.
        """
        found = self._settlements[start : min(end, self._settled)]
        return (Settlement(entry >> 1, bool(entry & 1)) for entry in found)

    def ids(self) -> Iterator[str]:
        """Yield the id (`batch_req_...`) of each line, in input order."""
        return map(RequestIds(self._order.batch_id).of, self._lines.all_offsets())

    def count_use(self, lines: int) -> None:
        """Count lines whose results were looked up. After every `_LINES_PER_RELEASE` lines, release memory.

        If the index is on disk, each part that is read stays in memory until the release. Without releases,
        the whole index would finally be in memory.
        """
        self._used += lines
        if self._used >= _LINES_PER_RELEASE:
            self._columns.release_pages()
            self._lines.columns.release_pages()
            self._used = 0

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
        """Read the results of these lines from storage. Return them as lines of a result file.

        All lines must have a result. The returned lines do not contain the newline.

        Raises:
            ObjectMissing: a segment was deleted, or merged into another segment, since the last refresh. Call
                `refresh`, and try again. In this case, `refresh` ignores `refresh_seconds`.
            SegmentDamaged: a result is damaged.
        """
        original = self._lines.original
        found: dict[int, bytes] = {}
        spans = self._spans({original(line) for line in lines})
        for start in range(0, len(spans), _READS_AT_ONCE):
            some = spans[start : start + _READS_AT_ONCE]
            for span, data in zip(some, await asyncio.gather(*map(self._read_span, some)), strict=True):
                found.update(_payloads(span, data))
        return [self._result(line, found[original(line)]) for line in lines]

    def _spans(self, lines: Iterable[int]) -> list[_Span]:
        """Return the byte ranges to read for the results of these lines. None of the lines may be a duplicate
        (a line that repeats an earlier line and has no result of its own).

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
        key = self._keys[span.segment]
        try:
            if not key:
                raise ObjectMissing(f"A segment of {self._order.batch_id} no longer exists.")
            return await self._storage.get(key, span.start, span.end - span.start)
        except ObjectMissing:
            self._refreshed_at = -self._refresh_seconds
            raise

    def _result(self, line: int, payload: bytes) -> bytes:
        duplicate = self._lines.duplicate(line)
        if duplicate is None:
            return payload
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
        for key in gone:  # last, so that after an interruption the next refresh repeats this
            del self._numbers[key]

    async def add_segments(self, segments: Sequence[ObjectInfo]) -> None:
        """Add the results in these segments to the index. Skip segments that no longer exist.

        Raises:
            SegmentDamaged: the end of a segment, which lists its results, is invalid.
        """
        for start in range(0, len(segments), _READS_AT_ONCE):
            some = segments[start : start + _READS_AT_ONCE]
            reads = [read_entries(self._storage, info) for info in some]
            for info, entries in zip(some, await asyncio.gather(*reads), strict=True):
                if entries is not None:
                    self._add(info.key, entries)

    def _add(self, key: str, entries: Sequence[IndexEntry]) -> None:
        number = self._numbers.setdefault(key, len(self._keys))
        if number == len(self._keys):
            self._keys.append(key)
        for kind, success, offset, length, position in entries:
            line = self._lines.number(offset) if kind is RecordKind.SETTLED else None
            if line is not None and self._must_store(line, success, key):
                self._segment[line], self._position[line] = number, position
                self._length[line], self._success[line] = length, success
                self._record_settlement(line, success)
        self.count_use(len(entries))

    def _record_settlement(self, line: int, success: bool) -> None:
        kind = 2 if success else 1
        if not self._known[line] & kind:
            self._known[line] |= kind
            for each in self._lines.sharing_result(line):
                self._settlements[self._settled] = each << 1 | success
                self._settled += 1

    def _must_store(self, line: int, success: bool, key: str) -> bool:
        """Return True if the index must store this result.

        The rules are the same as for the batch's files:

        - If the index has no result of the line, store this result.
        - If one of the two results is a success, and the other is a failure, keep the success.
        - Otherwise keep the result in the segment with the smaller key.

        Args:
            success: True if the result is a success, False if it is a failure.
            key: storage key of the segment that contains this result.
        """
        known = self._keys[self._segment[line]]
        return not known or (not success, key) < (not self._success[line], known)


def _payloads(span: _Span, data: bytes) -> dict[int, bytes]:
    view, found = memoryview(data), dict[int, bytes]()
    for line, position, length in span.places:
        at = position - span.start
        found[line] = record_payload(view[at - HEAD_BYTES : at + length])
    return found


async def open_index(
    storage: Storage,
    order: BatchOrder,
    ingested: IngestResult,
    space: ColumnSpace,
    refresh_seconds: float,
) -> LiveIndex:
    """Create the index of a running batch. The new index has only results that ingestion (the step that reads
    the input) has stored: errors of rejected lines, and results of an earlier batch that this batch resumes.

    Args:
        ingested: result of ingestion, with the location of the plans (lists of lines).
        space: creates the columns (arrays in memory or in a file) of the index.
        refresh_seconds: minimum time between two listings of the batch's segments.

    Raises:
        ObjectMissing: the plans no longer exist, because the batch has ended.
        PlanDamaged, SegmentDamaged: a stored object is damaged.
        StorageFull, StorageUnavailable: memory is too small, and the local disk is full or cannot be used.
    """
    segments = [info async for info in _ingested_segments(storage, ingested)]
    with closing(space.new_spill_space()) as spilled:
        collector = LineCollector(spilled)
        for share in ingested.models:
            plan = object_keys.plan(ingested.ingest_prefix, share.safe_model)
            async for entries in _whole_entries(storage.read(plan)):
                await spilled.run_in_thread(collector.add_plan, entries)
            if share.duplicates:
                listed = object_keys.duplicates(ingested.ingest_prefix, share.safe_model)
                async for texts in _whole_lines(storage.read(listed)):
                    await spilled.run_in_thread(collector.add_duplicates, texts)
        for info in segments:
            results = await read_entries(storage, info) or []
            offsets = [entry.offset for entry in results if entry.kind is RecordKind.SETTLED]
            await spilled.run_in_thread(collector.add_offsets, offsets)
        lines = await spilled.run_in_thread(collector.lines, space)
        columns = await spilled.run_in_thread(_result_columns, space, len(lines.offsets))
    index = LiveIndex(storage, order, lines, columns, refresh_seconds)
    await index.add_segments(segments)
    return index


def _result_columns(space: ColumnSpace, lines: int) -> Columns:
    return space.new_columns(
        ("I", lines), ("Q", lines), ("I", lines), ("B", lines), ("B", lines), ("I", 2 * lines)
    )


async def _whole_entries(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield a plan (a stored list of lines, with one entry for each line) in parts. Each part contains only
    complete entries, unless the plan ends within an entry. The parts in `pieces` can end within an entry.
    """
    rest = b""
    async for piece in pieces:
        data = rest + piece
        end = len(data) - len(data) % ENTRY_BYTES
        yield data[:end]
        rest = data[end:]
    if rest:
        yield rest


async def _whole_lines(pieces: AsyncIterator[bytes]) -> AsyncIterator[list[bytes]]:
    """Yield lists of complete lines of a file, without newlines. A piece can end within a line."""
    rest = b""
    async for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        yield lines
    if rest:
        yield [rest]


async def read_entries(storage: Storage, info: ObjectInfo) -> list[IndexEntry] | None:
    """Return one entry for each result in a segment, with the position of the result. Return None if the
    segment no longer exists.

    The end of a segment lists its results, so only this end is read.

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
        async for info in storage.list(object_keys.unserved_root(ingested.ingest_prefix)):
            yield info
    if ingested.resumed:
        async for info in storage.list(object_keys.resumed_root(ingested.ingest_prefix)):
            yield info
