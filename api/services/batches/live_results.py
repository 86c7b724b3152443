"""Results of a batch while it runs, in input order. They are the beginning of its output or error file."""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from json.encoder import encode_basestring_ascii
from typing import NamedTuple
from weakref import WeakValueDictionary

from fastapi import Request, Response
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from batchwright.api.dependencies import ApiDependencies
from batchwright.api.errors import ApiError, file_not_found, invalid_value, rate_limited
from batchwright.api.services.batches.live_index import LiveIndex, open_index
from batchwright.api.services.compressed_response import accepted_compression, encoded, encoding_headers
from batchwright.api.streams import LIFETIME_SECONDS
from batchwright.contracts.terms import BatchStatus
from batchwright.database.records import BatchRow, FileRow
from batchwright.rules.input.compression import Compression
from batchwright.rules.input.line_splitter import InputLine, LineSplitter
from batchwright.rules.results.output_lines import HEAD_BYTES, line_id
from batchwright.storage.base import ObjectMissing

JSONL = "application/jsonl"
_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}  # proxies must not buffer the lines
_MAX_READERS, _MAX_READERS_PER_TENANT = 64, 8
_MAX_INDEXES = 16  # in addition to the indexes that readers hold
_WINDOW_LINES, _WINDOW_BYTES = 1024, 1024 * 1024  # a reader holds about three times as many bytes
_LOOKED_AT_ONCE = 16_384  # number of lines, which take about 5 ms
_MAX_LINE_BYTES = 2**31
_MAX_MISSES = 10


class ReaderCutOff(Exception):
    """The response ends early, because the batch was deleted."""


class _NotInFile(Exception):
    """The client wants to continue after a line that is not in the file."""


class ResultQuery(NamedTuple):
    """Selects results of a batch.

    Attributes:
        success: True for the lines of the output file, False for the lines of the error file.
        after: `batch_req_...` id of the line after which to continue; None for the beginning.
        custom_id: select only lines with this custom id; None for no such condition.
        follow: True to wait for more lines until the batch has ended, the API process stops, or
            LIFETIME_SECONDS have passed.
    """

    success: bool = True
    after: str | None = None
    custom_id: str | None = None
    follow: bool = False


class _Window(NamedTuple):
    """Numbers of lines that are read together. `end` is the number of the next line to read."""

    lines: list[int]
    end: int


class LiveResults:
    """Reads the results of running batches from segments, and the results of ended batches from files.

    All readers of a batch share one index, so storage is listed at most once a second for each batch.
    """

    def __init__(self, deps: ApiDependencies) -> None:
        self._deps = deps
        self._readers = Counter[str]()
        self._indexes = WeakValueDictionary[str, LiveIndex]()  # indexes that readers hold, and recent indexes
        self._recent = OrderedDict[str, LiveIndex]()
        self._opening: dict[str, asyncio.Task[LiveIndex | None]] = {}

    async def response(
        self, request: Request, row: BatchRow, query: ResultQuery, *, without_body: bool = False
    ) -> Response:
        """Return a response whose body is the selected results, one per line.

        Args:
            without_body: True for a HEAD request, for which nothing is read.

        Raises:
            ApiError: too many readers (429), an unknown line in `after` (400), or the file of the ended batch
                was deleted (404).
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
        """Return the index of a running batch; None if its input is not validated yet, or is invalid."""
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
        return await open_index(self._deps.storage, row.order, ingested, self._deps.recent_seconds)

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
        """Drop the index of a batch that has ended."""
        self._indexes.pop(batch_id, None)
        self._recent.pop(batch_id, None)


class _Reader:
    """Reads the selected results of one batch for one request."""

    def __init__(
        self, results: LiveResults, deps: ApiDependencies, row: BatchRow, query: ResultQuery
    ) -> None:
        self._results, self._deps, self._row, self._query = results, deps, row, query
        self._next = 0  # number of the first line that is not read yet
        self._last = query.after  # id of the last line that was read
        self._is_checked = query.after is None  # False until the line `after` is found
        self._misses = 0
        self._index: LiveIndex | None = None

    async def pieces(self, is_disconnected: Callable[[], Awaitable[bool]]) -> AsyncGenerator[bytes]:
        """Yield the selected lines, many per item. The first item may be empty: it shows that `after` exists.

        Raises:
            ApiError: `after` is not one of the selected lines, or the file of the ended batch was deleted.
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
        """Read the batch's row again.

        Raises:
            ReaderCutOff: the batch was deleted.
        """
        order = self._row.order
        row = await self._deps.database.batches.get(order.tenant, order.batch_id)
        if row is None:
            raise ReaderCutOff
        self._row = row

    async def _settled(self) -> AsyncGenerator[bytes]:
        """Yield the next selected lines, up to the first line without a result. The first item is empty.

        Raises:
            ApiError: `after` is not one of the selected lines.
            ObjectMissing: a segment was merged into another segment, or the batch has ended. Try again.
        """
        query = self._query
        if self._index is None:
            self._index = await self._results.index(self._row)
        index = self._index
        if index is None and query.after is not None:
            raise _unknown_line(query.after)
        if index is not None:
            await index.refresh()
            if not self._next and query.after is not None:
                self._next = await asyncio.to_thread(_start_after, index, query.after, query.success)
        self._is_checked = True
        yield b""
        while index is not None and (window := _next_window(index, self._next, query.success)):
            lines = await index.read(window.lines)
            self._next, self._misses = window.end, 0
            if lines:
                self._last = line_id(lines[-1])
                yield _joined(lines, query.custom_id)
            else:
                await asyncio.sleep(0)  # lets other requests run

    async def _from_file(self, is_disconnected: Callable[[], Awaitable[bool]]) -> AsyncGenerator[bytes]:
        """Yield the selected lines of the ended batch's file, without the lines that were already yielded.

        The lines after the last yielded line are found in the file. If finalization used another result for
        this line, the line is not in this file, and nothing is yielded.

        Raises:
            ApiError: `after` is not one of the selected lines, or the file was deleted.
        """
        after, custom_id = self._last, self._query.custom_id
        file = await self._file()
        if file is None and not self._is_checked:
            raise _unknown_line(after or "")
        if after is None or file is None:
            yield b""
        if file is None:
            return
        pieces = self._deps.storage.read(file.storage_key)
        if after is not None or custom_id is not None:
            pieces = _selected(pieces, after, custom_id, is_disconnected)
        try:
            async for piece in pieces:
                yield piece
        except _NotInFile:
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
    """Response that sends `first` and then `pieces`. It always calls `release` at its end."""

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
    """Return the number of the line that follows the line with this id.

    Raises:
        ApiError: the line does not exist, has no result yet, or is in the other file.
    """
    found = index.find(id)
    if found is None or not index.is_settled(found) or index.is_success(found) != success:
        raise _unknown_line(id)
    return found + 1


def _next_window(index: LiveIndex, start: int, success: bool) -> _Window | None:
    """Return the next lines to read: from number `start`, up to the first line without a result.

    The window contains only successful lines, or only failed lines if `success` is False. It ends early if
    the lines are too many or too large. Return None if the line `start` has no result or does not exist.
    """
    lines, size, end = list[int](), 0, start
    most = min(len(index), start + _LOOKED_AT_ONCE)
    while end < most and len(lines) < _WINDOW_LINES and size < _WINDOW_BYTES and index.is_settled(end):
        if index.is_success(end) == success:
            lines.append(end)
            size += index.size(end)
        end += 1
    return _Window(lines, end) if end > start else None


def _joined(lines: list[bytes], custom_id: str | None) -> bytes:
    if custom_id is not None:
        wanted = _beginning(custom_id)
        lines = [line for line in lines if line.startswith(wanted, HEAD_BYTES)]
    return b"".join([part for line in lines for part in (line, b"\n")])


def _beginning(custom_id: str) -> bytes:
    """Return the bytes that follow the line id in a result line with this custom id."""
    return b',"custom_id":%b,"response":' % encode_basestring_ascii(custom_id).encode()


async def _selected(
    pieces: AsyncIterator[bytes],
    after: str | None,
    custom_id: str | None,
    is_disconnected: Callable[[], Awaitable[bool]],
) -> AsyncGenerator[bytes]:
    """Yield the selected lines of a file, until the file ends or the client disconnects.

    Args:
        pieces: the bytes of the file.
        after: select only lines after the line with this id; None selects from the beginning.
        custom_id: select only lines with this custom id; None selects lines with any custom id.

    Raises:
        _NotInFile: no line has the id `after`.
    """
    splitter, found = LineSplitter(_MAX_LINE_BYTES), after is None
    begins = b'{"id":"%b"' % (after or "").encode()

    def select(lines: Iterator[InputLine]) -> bytes:
        nonlocal found
        chosen = list[bytes]()
        for line in lines:
            data = line.data or b""
            if found:
                chosen.append(data)
            else:
                found = data.startswith(begins)
        return _joined(chosen, custom_id)

    async for piece in pieces:
        lines = await asyncio.to_thread(select, splitter.feed(piece))
        if found:
            yield lines
        if not lines and await is_disconnected():  # sending lines would notice it
            return
    lines = select(splitter.finish())
    if not found:
        raise _NotInFile
    yield lines


def _unknown_line(id: str) -> ApiError:
    return invalid_value(
        "after", f"Invalid 'after': no line with id '{id}' is among the results that this request selects."
    )
