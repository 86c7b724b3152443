"""Sends the results of a batch while it runs, in input order or as lines settle (get a final result).

If a client reads in input order, the lines that it receives are the first lines of the later output or error
file.
"""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import NamedTuple
from weakref import WeakValueDictionary

from fastapi import Request, Response
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from batchwright.api.client_limits.long_responses import LIFETIME_SECONDS
from batchwright.api.dependencies import ApiDependencies
from batchwright.api.errors import ApiError, file_not_found, invalid_value, rate_limited
from batchwright.api.services.compressed_response import accepted_compression, encoded, encoding_headers
from batchwright.api.services.live_results.line_selection import (
    LineFilter,
    NotInFile,
    SentLines,
    joined,
    selected_lines,
)
from batchwright.api.services.live_results.reading_order import NextWindow, next_in_input_order, next_settled
from batchwright.api.services.live_results.settled_line_index import BYTES_PER_LINE, LiveIndex, open_index
from batchwright.contracts.terms import BatchStatus
from batchwright.database.records import BatchRow, FileRow
from batchwright.rules.input.compression import Compression
from batchwright.rules.results.output_lines import line_id
from batchwright.storage.base import ObjectMissing
from batchwright.storage.spill.columns import ColumnSpace

JSONL = "application/jsonl"
_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}  # proxies must not buffer the lines
_MAX_READERS, _MAX_READERS_PER_TENANT = 64, 8
_MAX_INDEXES = 16  # in addition to the indexes that readers hold
_MAX_FILE_BYTES = 1024**3  # of all indexes on disk, except those that readers hold: half of a pod's disk
_MAX_MISSES = 10


class ReaderCutOff(Exception):
    """The error if a batch was deleted while its results were read. The response then ends early."""


class ResultQuery(NamedTuple):
    """A query that selects results of a batch.

    Attributes:
        success: True for the lines of the output file, False for the lines of the error file.
        after: id (`batch_req_...`) of the line after which the results begin; None for all results. If this
            is not None, `in_input_order` must be True.
        custom_id: select only lines with this custom id; None selects all lines.
        follow: True to wait for more lines. The wait ends when the batch has ended, when the API process
            stops, or after LIFETIME_SECONDS.
        in_input_order: True for the order of the input: if a line has no result yet, the lines after it are
            not sent yet. False for the order in which this process finds the results.
    """

    success: bool = True
    after: str | None = None
    custom_id: str | None = None
    follow: bool = False
    in_input_order: bool = True


class LiveResults:
    """A reader of the results of running batches (from segments) and of ended batches (from files).

    A segment is an object with results that a worker writes while the batch runs. An index shows where each
    result is stored. All readers of a batch share one index, so that this process lists the segments of a
    batch at most once a second.
    """

    def __init__(self, deps: ApiDependencies) -> None:
        self._deps = deps
        self._readers = Counter[str]()
        self._indexes = WeakValueDictionary[str, LiveIndex]()  # indexes that readers hold, and recent indexes
        self._recent = OrderedDict[str, LiveIndex]()
        self.space = ColumnSpace(deps.settings.spool_dir)
        self._opening: dict[str, asyncio.Task[LiveIndex | None]] = {}

    async def response(
        self, request: Request, row: BatchRow, query: ResultQuery, *, without_body: bool = False
    ) -> Response:
        """Return a response whose body is the selected results, one per line.

        Args:
            without_body: True for a HEAD request, for which no result is read.

        Raises:
            ApiError: there are too many readers (429), the line in `after` is unknown (400), or the file of
                the ended batch was deleted (404).
        """
        if without_body:
            return Response(None, headers=_HEADERS, media_type=JSONL)
        tenant = row.order.tenant
        self._acquire(tenant)
        pieces = _Reader(self, self._deps, row, query).pieces(request.is_disconnected)
        try:
            first = await anext(pieces, b"")  # checks `after`, while an error response is still possible
        except BaseException:
            self._release(tenant)
            raise
        return _ResultStream(first, pieces, lambda: self._release(tenant), accepted_compression(request))

    def _acquire(self, tenant: str) -> None:
        if self._readers[tenant] >= _MAX_READERS_PER_TENANT:
            most, whose = _MAX_READERS_PER_TENANT, f"tenant '{tenant}' reads"
        elif self._readers.total() >= _MAX_READERS:
            most, whose = _MAX_READERS, "all tenants together read"
        else:
            self._readers[tenant] += 1
            return
        message = (
            f"Too many readers of results: {whose} {most} at a time from this API process. "
            "End one of them, or try again later."
        )
        raise rate_limited(message, most)

    def _release(self, tenant: str) -> None:
        self._readers[tenant] -= 1
        if not self._readers[tenant]:
            del self._readers[tenant]

    async def index(self, row: BatchRow) -> LiveIndex | None:
        """Return the index of a running batch. The index shows where each result is stored.

        Return None if the batch's input is not validated yet, or is not valid.

        Raises:
            ObjectMissing: the batch has ended meanwhile.
        """
        batch_id = row.order.batch_id
        index = self._indexes.get(batch_id)
        if index is not None:
            self._keep(batch_id, index)
            return index
        if row.status is BatchStatus.VALIDATING:
            return None
        opening = self._opening.get(batch_id)
        if opening is None:
            opening = self._opening[batch_id] = asyncio.create_task(self._open(row))
            opening.add_done_callback(lambda task: self._opened(batch_id, task))
        return await asyncio.shield(opening)  # a cancelled caller must not cancel it for others

    async def _open(self, row: BatchRow) -> LiveIndex | None:
        ingested = await self._deps.temporal.ingested(row.order.batch_id)
        if ingested is None or not ingested.ingest_prefix:
            return None
        self._make_room(BYTES_PER_LINE * ingested.total)
        seconds = self._deps.recent_seconds
        return await open_index(self._deps.storage, row.order, ingested, self.space, seconds)

    def _make_room(self, size: int) -> None:
        """Drop indexes (lists of where results are stored) from the local disk until all index files,
        including a new index of `size` bytes, have at most `_MAX_FILE_BYTES` together.

        Indexes that readers are using are not dropped. The least recently used index is dropped first.
        """
        for batch_id in [id for id, index in self._recent.items() if index.is_on_disk]:
            if self.space.file_bytes_with(size) <= _MAX_FILE_BYTES:
                return
            del self._recent[batch_id]
            if (held := self._indexes.get(batch_id)) is not None:
                self._recent[batch_id] = held

    def _opened(self, batch_id: str, opening: "asyncio.Task[LiveIndex | None]") -> None:
        del self._opening[batch_id]
        if opening.cancelled() or opening.exception() is not None or (index := opening.result()) is None:
            return
        self._indexes[batch_id] = index
        self._keep(batch_id, index)

    def _keep(self, batch_id: str, index: LiveIndex) -> None:
        self._recent[batch_id] = index
        self._recent.move_to_end(batch_id)
        if len(self._recent) > _MAX_INDEXES:
            self._recent.popitem(last=False)

    def forget(self, batch_id: str) -> None:
        """Drop the index of a batch (the list of where its results are stored), to free memory or disk. Call
        this when the batch has ended.
        """
        self._indexes.pop(batch_id, None)
        self._recent.pop(batch_id, None)


class _Reader:
    """A reader of the selected results of one batch, for one request."""

    def __init__(
        self, results: LiveResults, deps: ApiDependencies, row: BatchRow, query: ResultQuery
    ) -> None:
        self._results, self._deps, self._row, self._query = results, deps, row, query
        self._next_window: NextWindow = next_in_input_order if query.in_input_order else next_settled
        self._next = 0  # place at which the next window starts
        self._last = query.after  # id of the last line that was read, in input order
        self._is_checked = query.after is None  # False until the line `after` is found
        self._misses = 0
        self._index: LiveIndex | None = None
        self._sent: SentLines | None = None  # None for input order, for which `_last` is enough to continue

    async def pieces(self, is_disconnected: Callable[[], Awaitable[bool]]) -> AsyncGenerator[bytes]:
        """Yield the selected lines. Many lines are joined into each yielded value.

        The first value may be empty. If the query has the id of a line after which the results begin
        (`query.after`), the line is looked up before the first value is yielded. Therefore the caller can
        still send an error response.

        Raises:
            ApiError: `query.after` is not one of the selected lines, or the file of the ended batch was
                deleted.
            ReaderCutOff: the batch was deleted.
        """
        until = asyncio.get_running_loop().time() + LIFETIME_SECONDS
        while not _has_ended(self._row):
            missed = False
            try:
                async for piece in self._settled():
                    yield piece
                    if self._stops_following(until):
                        return
            except ObjectMissing:  # segments were merged, or the batch has ended
                missed = True
                self._misses += 1
                if self._misses > _MAX_MISSES:
                    raise
            await self._read_row()
            if not _has_ended(self._row):
                if not (self._query.follow or missed) or await is_disconnected():
                    return
                await asyncio.sleep(self._deps.recent_seconds)
                if self._stops_following(until):
                    return
        self._results.forget(self._row.order.batch_id)
        self._index = None
        async for piece in self._from_file(is_disconnected):
            yield piece

    def _stops_following(self, until: float) -> bool:
        is_over = self._deps.stopping.is_set or asyncio.get_running_loop().time() >= until
        return self._query.follow and is_over

    async def _read_row(self) -> None:
        """Read the batch's row from the database again.

        Raises:
            ReaderCutOff: the batch was deleted.
        """
        order = self._row.order
        row = await self._deps.database.batches.get(order.tenant, order.batch_id)
        if row is None:
            raise ReaderCutOff
        self._row = row

    async def _settled(self) -> AsyncGenerator[bytes]:
        """Yield the selected lines that have a result now and were not yielded before.

        The first yielded value is always empty. If the query has an `after`, this value shows that the line
        was found.

        Raises:
            ApiError: `after` is not one of the selected lines.
            ObjectMissing: a segment was merged into another segment, or the batch has ended. The caller must
                try again.
        """
        query = self._query
        if self._index is None:
            self._index = await self._results.index(self._row)
            if self._index is not None and not query.in_input_order:
                # now, because an error response is no longer possible when the batch ends
                self._sent = await asyncio.to_thread(SentLines, self._results.space, self._index)
        index = self._index
        if index is None and query.after is not None:
            raise _unknown_line(query.after)
        if index is not None:
            await index.refresh()
            if not self._next and query.after is not None:
                self._next = await asyncio.to_thread(_start_after, index, query.after, query.success)
        self._is_checked = True
        yield b""
        while index is not None and (window := self._next_window(index, self._next, query.success)):
            lines = await index.read(window.lines)
            index.count_use(window.end - self._next)
            self._next, self._misses = window.end, 0
            if self._sent is not None:
                self._sent.add(window.lines)
            if lines:
                if query.in_input_order:
                    self._last = line_id(lines[-1])
                yield joined(lines, query.custom_id)
            else:
                await asyncio.sleep(0)  # lets other requests run

    async def _from_file(self, is_disconnected: Callable[[], Awaitable[bool]]) -> AsyncGenerator[bytes]:
        """Yield the selected lines of an ended batch's file, except lines that were already yielded.

        In input order, reading continues after the last line that was yielded. If the file does not contain
        that line, nothing is yielded. An example: the line's failure was yielded. Then a success replaced the
        failure. So the line is in the output file, not in the error file.

        Raises:
            ApiError: `after` is not one of the selected lines, or the file was deleted.
        """
        after, custom_id, sent = self._last, self._query.custom_id, self._sent
        file = await self._file()
        if file is None and not self._is_checked:
            raise _unknown_line(after or "")
        if after is None or file is None:
            yield b""
        if file is None:
            return
        pieces = self._deps.storage.read(file.storage_key)
        if after is not None or custom_id is not None or sent is not None:
            pieces = selected_lines(pieces, LineFilter(after, custom_id, sent), is_disconnected)
        try:
            async for piece in pieces:
                yield piece
        except NotInFile:
            if not self._is_checked:
                raise _unknown_line(after or "") from None

    async def _file(self) -> FileRow | None:
        row = self._row
        id = row.output_file_id if self._query.success else row.error_file_id
        if id is None:
            return None
        file = await self._deps.database.files.get(row.order.tenant, id)
        if file is None:
            raise file_not_found(id)
        return file


class _ResultStream(StreamingResponse):
    """A response that sends `first` and then `pieces`. At its end, it always calls `release`, even after an
    error.
    """

    def __init__(
        self,
        first: bytes,
        pieces: AsyncGenerator[bytes],
        release: Callable[[], None],
        compression: Compression | None,
    ) -> None:
        body, headers = encoded(first, pieces, compression, flushes=True), encoding_headers(compression)
        super().__init__(body, headers={**_HEADERS, **headers}, media_type=JSONL)
        self._pieces, self._release = pieces, release

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._release()
            await self._pieces.aclose()


def _has_ended(row: BatchRow) -> bool:
    return row.status.is_terminal and not row.files_pending


def _start_after(index: LiveIndex, id: str, success: bool) -> int:
    """Return the number of the line that follows the line with this id. Lines are numbered from 0 in input
    order.

    Args:
        success: True if successes are requested, False if failures are requested.

    Raises:
        ApiError: the line `id` does not exist or has no result of the requested kind.
    """
    found = index.find(id)
    if found is None or not index.is_settled(found) or index.is_success(found) != success:
        raise _unknown_line(id)
    return found + 1


def _unknown_line(id: str) -> ApiError:
    return invalid_value(
        "after", f"Invalid 'after': no line with id '{id}' is among the results that this request selects."
    )
