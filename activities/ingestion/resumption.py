"""Resumption: a batch with the same input reuses the results of an earlier batch, the source batch.

The results are read from the source batch's output files. If the source batch has no output files, its
results are read from its segments: objects with results that were stored while the source batch ran.
"""

import os
from collections.abc import AsyncGenerator
from contextlib import ExitStack, asynccontextmanager, closing
from typing import BinaryIO

from batchwright.activities.errors import failure
from batchwright.activities.ingestion.input_spool import InputSpool
from batchwright.activities.services.model_access import display_name
from batchwright.activities.stored_results.input_order_index import ResultIndex
from batchwright.activities.stored_results.result_spool import ResultSpool
from batchwright.activities.stored_results.segment_reader import SegmentReader
from batchwright.contracts.errors import Failure
from batchwright.contracts.temporal_payloads.batch import BatchOrder, ModelCounts, RerunKind
from batchwright.contracts.terms import Usage
from batchwright.database.database import Database
from batchwright.database.records import BatchRow
from batchwright.rules.ids import request_id
from batchwright.rules.results.error_tally import ErrorTally, line_error
from batchwright.rules.results.output_lines import (
    ResultDamaged,
    is_settled_result,
    line_id,
    usage_of_line,
    with_id,
)
from batchwright.rules.results.segment_format import RecordKind, SegmentRecord, SegmentWriter
from batchwright.rules.stored_objects import object_keys
from batchwright.settings import Settings
from batchwright.storage.base import ObjectMissing, Storage

_SEGMENT_BYTES = 4 * 1024 * 1024
_MAX_NAMED_MODELS = 1_000  # maximum number of models that are counted by name
_OTHER_MODELS = "(other models)"


class ResultReader:
    """A reader that returns the results in a file one by one, in the order of the input.

    Attributes:
        success: True for an output file, False for an error file.
        id: request id of the next result; empty at the end of the file.
    """

    def __init__(self, spool: InputSpool, *, success: bool) -> None:
        self.success = success
        self.id = ""  # request id of the next result; empty at the end
        self._reader: BinaryIO = os.fdopen(os.dup(spool.file.fileno()), "rb")
        self._line = b""

    def read_first(self) -> None:
        """Read the first result, so that `id` is the request id of this result.

        Call this once, when the whole file is on the local disk.

        Raises:
            ResultDamaged: the first line is not a result.
        """
        self._reader.seek(0)
        self._advance()

    def pop(self) -> bytes:
        """Return the result whose request id is `id`, as a line without its newline.

        The call also reads the following result, and sets `id` to its request id.

        Raises:
            ResultDamaged: the following line is not a result.
        """
        line = self._line
        self._advance()
        return line

    def close(self) -> None:
        self._reader.close()

    def _advance(self) -> None:
        self._line = self._reader.readline().rstrip(b"\n")
        self.id = line_id(self._line) if self._line else ""


class ResumedResults:
    """The reused results: the new batch takes them from the source batch, the batch that it resumes.

    The results are copied to the local disk as segments. A segment contains many results. Call `copy_result`
    for each line of the input, in order.

    Args:
        files: readers of the source batch's output and error results.
        spool: the file to which the segments are written.
        complete: True if the source batch must have a result for every line of the input. A missing result is
            then an error.
    """

    def __init__(
        self, order: BatchOrder, files: list[ResultReader], spool: InputSpool, *, complete: bool
    ) -> None:
        assert order.origin is not None
        self.segments: list[tuple[int, int]] = []  # position in the spool, length
        self.counts: dict[str, ModelCounts] = {}
        self.errors = ErrorTally()  # errors of the results that are failures
        self._batch_id, self._source = order.batch_id, order.origin.batch_id
        self._files = files
        self._spool = spool
        self._complete = complete
        self._writer = SegmentWriter()
        self._end = 0

    @property
    def lines(self) -> int:
        return sum(count.lines for count in self.counts.values())

    def read_first(self) -> None:
        """Read the first result of each file. Call this before `copy_result`.

        Raises:
            ApplicationError (RESULTS_DAMAGED): the first line of a file is not a result.
        """
        try:
            for file in self._files:
                file.read_first()
        except ResultDamaged as error:
            raise self._damaged(str(error)) from error

    def copy_result(self, offset: int, model: str) -> bool:
        """Copy the result that the source batch has for the line at `offset` in the input.

        Return True if the result was copied. Return False if the line must be sent, in two cases:

        - The source batch has no result for the line.
        - The line's result is only an error, because the source batch ended before the line was finished.

        Args:
            offset: position of the line in the input, in bytes.
            model: model of the line; results are counted by model.

        Raises:
            ApplicationError (RESULTS_DAMAGED): a result is damaged or missing.
        """
        source_id = request_id(self._source, offset)
        try:
            for file in self._files:
                if file.id == source_id:
                    return self._copy(file.pop(), file.success, offset, model)
        except ResultDamaged as error:
            raise self._damaged(str(error)) from error
        if self._complete:
            raise self._damaged(f"they have no result for the line at byte {offset} of the input")
        return False

    def finish(self) -> None:
        """Write the last results to the local disk. Call this after the last line of the input.

        Raises:
            ApplicationError (RESULTS_DAMAGED): a result does not belong to any line of the input.
        """
        for file in self._files:
            if file.id:
                raise self._damaged(f"the input has no line for {file.id}")
        self._flush()

    def segment(self, number: int) -> bytes:
        """Return the content of segment `number`, an index in the list `segments`."""
        position, length = self.segments[number]
        return os.pread(self._spool.file.fileno(), length, position)

    def _copy(self, line: bytes, success: bool, offset: int, model: str) -> bool:
        if not success and not is_settled_result(line):
            return False
        usage = usage_of_line(line) if success else Usage()
        own_line = with_id(line, request_id(self._batch_id, offset))
        self._writer.add(SegmentRecord(RecordKind.SETTLED, offset, own_line, success, usage))
        self._count(model, success)
        if not success:
            self.errors.add(line_error(line, display_name(model)))
        if self._writer.size >= _SEGMENT_BYTES:
            self._flush()
        return True

    def _count(self, model: str, success: bool) -> None:
        name = display_name(model)
        name = name if name in self.counts or len(self.counts) < _MAX_NAMED_MODELS else _OTHER_MODELS
        before = self.counts.get(name) or ModelCounts(model=name, lines=0)
        self.counts[name] = ModelCounts(
            model=name,
            lines=before.lines + 1,
            completed=before.completed + success,
            failed=before.failed + (not success),
        )

    def _flush(self) -> None:
        if len(self._writer):
            data = self._writer.finish()
            self._spool.write(data)
            self.segments.append((self._end, len(data)))
            self._end += len(data)
            self._writer = SegmentWriter()

    def _damaged(self, reason: str) -> Exception:
        return failure(
            Failure.RESULTS_DAMAGED, f"The results of {self._source!r} cannot be reused: {reason}."
        )


class SourceBatchGone(Exception):
    """The exception that is raised if the batch to resume, or its results, no longer exist.

    The client sees the message.
    """


@asynccontextmanager
async def resumed_results(
    order: BatchOrder, database: Database, storage: Storage, settings: Settings
) -> AsyncGenerator[ResumedResults | None]:
    """Context manager that yields the reusable results of the source batch, the batch that is resumed.

    The yielded value is None if the batch does not resume another batch. The local disk needs space for twice
    the size of the results.

    Raises:
        SourceBatchGone: the source batch, its results or one of its files were deleted.
        SegmentDamaged: a stored object with results of the source batch is damaged.
        StorageUnavailable, DatabaseUnavailable: the service does not respond.
    """
    origin = order.origin
    if origin is None or origin.kind is not RerunKind.RESUME:
        yield None
        return
    row = await database.batches.get(order.tenant, origin.batch_id)
    if row is None:
        raise SourceBatchGone(f"The batch '{origin.batch_id}' that this batch resumes no longer exists.")
    with ExitStack() as stack:
        output, error, segments = (stack.enter_context(InputSpool(settings.spool_dir)) for _ in range(3))
        files = [stack.enter_context(closing(ResultReader(output, success=True)))]
        files.append(stack.enter_context(closing(ResultReader(error, success=False))))
        complete = row.output_file_id is not None or row.error_file_id is not None
        if complete:
            await _copy_files(row, database, storage, (output, error))
        else:
            await _copy_segments(row, storage, settings, (output, error))
            await _check_kept(order, origin.batch_id, database)
        resumed = ResumedResults(order, files, segments, complete=complete)
        await segments.run_in_thread(resumed.read_first)
        yield resumed


async def _copy_files(
    row: BatchRow, database: Database, storage: Storage, spools: tuple[InputSpool, InputSpool]
) -> None:
    for spool, file_id in zip(spools, (row.output_file_id, row.error_file_id), strict=True):
        if file_id is None:
            continue
        file = await database.files.get(row.order.tenant, file_id)
        try:
            if file is None:
                raise ObjectMissing(file_id)
            spool.require(2 * file.bytes)
            async for piece in storage.read(file.storage_key):
                await spool.run_in_thread(spool.write, piece)
        except ObjectMissing:
            message = f"The file '{file_id}' with results of '{row.order.batch_id}' no longer exists."
            raise SourceBatchGone(message) from None


async def _copy_segments(
    row: BatchRow, storage: Storage, settings: Settings, spools: tuple[InputSpool, InputSpool]
) -> None:
    """Read the results of a batch that has no output files, and write them to local files.

    The results are read from the batch's segments, stored objects with many results each.

    Args:
        row: row of the source batch.
        spools: local files, the first for successes and the second for errors.
    """
    tenant, batch_id = row.order.tenant, row.order.batch_id
    with ResultSpool(settings.spool_dir) as result_spool, ResultIndex(result_spool) as index:
        reader = SegmentReader(storage, result_spool, index)
        async for info in storage.list(object_keys.ingest_root(tenant, batch_id)):
            if object_keys.is_resumed_segment(info.key):
                await reader.read_segment(info.key)
        await reader.read_live_prefix(object_keys.results_root(tenant, batch_id))
        selected = await result_spool.run_in_thread(index.select)
        for spool, rows in zip(spools, (selected.output, selected.error), strict=True):
            blocks = index.line_blocks(rows)
            while block := await result_spool.run_in_thread(next, blocks, None):
                await spool.run_in_thread(spool.write, block)


async def _check_kept(order: BatchOrder, source_id: str, database: Database) -> None:
    """Check that no deletion of the source batch has begun, so that no segment is missing in the copy.

    A segment is an object with stored results. Call this function after all segments were copied. If a
    segment was deleted before it could be copied, the lines of this segment would be sent again.

    The row of the source batch contains the time until which its results are kept. Normally, this time is not
    before the new batch's deadline. A deletion first sets the time to an earlier value, then it deletes the
    segments. So if the time is before the new batch's deadline, a deletion has begun.

    Raises:
        SourceBatchGone: a deletion has begun, or the source batch no longer exists.
    """
    row = await database.batches.get(order.tenant, source_id)
    kept_until = row and row.results_kept_until
    if row is None or (kept_until is not None and kept_until < order.deadline):
        raise SourceBatchGone(f"The results of '{source_id}', which this batch resumes, are no longer kept.")
