"""A batch that resumes another batch (its source) reuses its results, and plans only the other lines."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from temporalio.exceptions import ApplicationError

from batchwright.contracts.errors import Failure, LineCode
from batchwright.contracts.temporal_payloads.batch import ErrorCount, ErrorExample, RerunKind, SourceBatch
from batchwright.contracts.temporal_payloads.finalization import FinalizeResult
from batchwright.contracts.temporal_payloads.ingestion import IngestResult
from batchwright.contracts.terms import BatchStatus, Usage
from batchwright.database.records import BatchOutcome, FileRow
from batchwright.rules.ids import derived_file_id, request_id
from batchwright.rules.input.line_splitter import LineSplitter
from batchwright.rules.results.output_lines import error_line, result_line
from batchwright.rules.results.segment_format import RecordKind, SegmentRecord, SegmentWriter
from batchwright.rules.stored_objects import object_keys
from tests.activities.finalization.finalized import finalized
from tests.activities.ingestion.fresh_batch import BATCH_ID, FILE_ID, TENANT, FreshBatch, a_line

ORIGIN_ID = "batch_" + "1" * 32
ANSWER = b'{"usage":{"prompt_tokens":3,"completion_tokens":2},"n":12345678901234567890}'


class Line(msgspec.Struct):
    id: str
    custom_id: str
    response: msgspec.Raw
    error: msgspec.Raw


class ResumedBatch(FreshBatch):
    """A batch that resumes a source batch. The test decides which lines the source batch has settled.

    The lines are alternately for the models "a" and "b".
    """

    def __init__(self, lines: int = 12, served: tuple[str, ...] = ("a", "b")) -> None:
        super().__init__(*(a_line(f"line-{n}", "ab"[n % 2]) for n in range(lines)), served=served)
        origin = SourceBatch(batch_id=ORIGIN_ID, kind=RerunKind.RESUME)
        self.first = self.order.model_copy(update={"batch_id": ORIGIN_ID})
        self.order = self.order.model_copy(update={"origin": origin})
        splitter = LineSplitter(10_000)
        found = [*splitter.feed(self.input), *splitter.finish()]
        self.offsets = [line.offset for line in found]

    def success(self, n: int, batch_id: str = ORIGIN_ID) -> bytes:
        id = request_id(batch_id, self.offsets[n])
        return result_line(id, f"line-{n}", status_code=200, backend_request_id="r", body=ANSWER)

    def failure(self, n: int, code: LineCode) -> bytes:
        return error_line(request_id(ORIGIN_ID, self.offsets[n]), f"line-{n}", code, "why")

    async def end_with_files(self, output: list[bytes], error: list[bytes]) -> None:
        """Make the source batch `expired`, with these lines in its files."""
        await self.upload()
        await self.database.batches.upsert(self.first)
        files = [await self._file(kind, lines) for kind, lines in (("output", output), ("error", error))]
        outcome = BatchOutcome(
            status=BatchStatus.EXPIRED,
            completed=len(output),
            failed=len(error),
            usage=Usage(),
            output=files[0],
            error=files[1],
        )
        await self.database.batch_ends.finish(TENANT, ORIGIN_ID, outcome, datetime.now(UTC))

    async def end_without_files(self, records: list[SegmentRecord]) -> None:
        """Make the source batch `failed`, and keep a segment with these records."""
        await self.upload()
        await self.database.batches.upsert(self.first)
        writer = SegmentWriter()
        for record in records:
            writer.add(record)
        folder = object_keys.slice_results(TENANT, ORIGIN_ID, "a", 0)
        await self.storage.put(object_keys.segment(folder, 0, 1, "nonce", 0), writer.finish())
        now = datetime.now(UTC)
        keep = now + timedelta(days=1)
        await self.database.batch_ends.end_without_files(TENANT, ORIGIN_ID, BatchStatus.FAILED, [], now, keep)

    async def _file(self, kind: str, lines: list[bytes]) -> FileRow | None:
        if not lines:
            return None
        key, data = f"origin/{kind}", b"".join(line + b"\n" for line in lines)
        await self.storage.put(key, data)
        return FileRow(
            id=derived_file_id(ORIGIN_ID, kind),
            tenant=TENANT,
            purpose="batch_output",
            filename="x",
            bytes=len(data),
            created_at=self.order.created_at,
            storage_key=key,
        )

    async def settle(self, numbers: list[int]) -> None:
        """Store the results that a slice would have written for these lines."""
        writer = SegmentWriter()
        for n in numbers:
            line = self.success(n, BATCH_ID)
            writer.add(
                SegmentRecord(
                    RecordKind.SETTLED, self.offsets[n], line, success=True, usage=Usage(input_tokens=1)
                )
            )
        folder = object_keys.slice_results(TENANT, BATCH_ID, "a", 0)
        await self.storage.put(object_keys.segment(folder, 0, 1, "nonce", 0), writer.finish())

    async def finalize(self, result: IngestResult) -> FinalizeResult:
        return await finalized(self, result)

    async def in_file(self, kind: str) -> list[Line]:
        row = await self.database.files.get(TENANT, derived_file_id(BATCH_ID, kind))
        data = b"" if row is None else await self.storage.get(row.storage_key)
        return [msgspec.json.decode(line, type=Line) for line in data.splitlines()]

    async def planned(self, result: IngestResult) -> set[int]:
        """Return the numbers of the lines in the plans."""
        entries = [entry for share in result.models for entry in self.plan(result, share)]
        return {self.offsets.index(entry.offset) for entry in entries}


async def test_only_lines_without_a_result_are_planned() -> None:
    batch = ResumedBatch()
    refused = [batch.failure(n, LineCode.REQUEST_TIMEOUT) for n in (1,)]
    expired = [batch.failure(n, LineCode.BATCH_EXPIRED) for n in (4, 7, 11)]
    done = [n for n in range(12) if n not in (1, 4, 7, 11)]
    await batch.end_with_files([batch.success(n) for n in done], refused + expired)
    result = await batch.ingest()
    row = await batch.row()
    assert await batch.planned(result) == {4, 7, 11}
    assert (result.total, result.resumed) == (12, 9)
    assert (row.total, row.completed, row.failed) == (12, 8, 1)
    assert {(c.model, c.lines, c.completed, c.failed) for c in row.models} == {("a", 6, 5, 0), ("b", 6, 3, 1)}
    example = ErrorExample(custom_id="line-1", message="why")
    assert row.errors_summary == [ErrorCount(code="request_timeout", model="b", count=1, example=example)]


async def test_the_files_have_old_and_new_results_in_input_order() -> None:
    batch = ResumedBatch()
    done = [n for n in range(12) if n % 3]
    left = [n for n in range(12) if n % 3 == 0]
    await batch.end_with_files(
        [batch.success(n) for n in done], [batch.failure(n, LineCode.BATCH_CANCELLED) for n in left]
    )
    result = await batch.ingest()
    await batch.settle(left)
    ended = await batch.finalize(result)
    lines, row = await batch.in_file("output"), await batch.row()
    assert [line.custom_id for line in lines] == [f"line-{n}" for n in range(12)]
    assert [line.id for line in lines] == [request_id(BATCH_ID, offset) for offset in batch.offsets]
    assert all(ANSWER in bytes(line.response) for line in lines)
    assert ended.usage.input_tokens == 3 * len(done) + len(left)
    assert (row.completed, row.failed) == (12, 0)
    assert {(c.model, c.lines, c.completed, c.failed) for c in row.models} == {("a", 6, 6, 0), ("b", 6, 6, 0)}


async def test_a_batch_with_nothing_left_to_send_only_writes_its_files() -> None:
    batch = ResumedBatch()
    await batch.end_with_files([batch.success(n) for n in range(12)], [])
    result = await batch.ingest()
    ended = await batch.finalize(result)
    row = await batch.row()
    assert result.models == []
    assert (ended.status, ended.completed) == (BatchStatus.COMPLETED, 12)
    assert {(c.model, c.lines, c.completed, c.failed) for c in row.models} == {("a", 6, 6, 0), ("b", 6, 6, 0)}


async def test_results_kept_in_segments_of_a_failed_batch_are_reused() -> None:
    batch = ResumedBatch()
    records = [
        SegmentRecord(RecordKind.SETTLED, batch.offsets[n], batch.success(n), success=True, usage=Usage())
        for n in (5, 2)
    ]
    await batch.end_without_files(records)
    result = await batch.ingest()
    assert await batch.planned(result) == set(range(12)) - {2, 5}
    assert result.resumed == 2


async def test_results_are_not_resumed_in_part_after_their_deletion_has_begun() -> None:
    batch = ResumedBatch()
    records = [
        SegmentRecord(RecordKind.SETTLED, batch.offsets[n], batch.success(n), success=True, usage=Usage())
        for n in (5, 2)
    ]
    await batch.end_without_files(records)
    await batch.database.batch_deletions.begin(TENANT, ORIGIN_ID, keep_files=False)
    result, row = await batch.ingest(), await batch.row()
    assert result.failed
    assert "no longer kept" in row.errors[0].message


async def test_lines_of_a_model_no_longer_served_are_counted_with_the_reused_results() -> None:
    batch = ResumedBatch(served=("a",))
    await batch.end_with_files(
        [batch.success(n) for n in (1, 3)],
        [batch.failure(n, LineCode.BATCH_EXPIRED) for n in range(12) if n not in (1, 3)],
    )
    result = await batch.ingest()
    await batch.settle([0, 2, 4, 6, 8, 10])
    await batch.finalize(result)
    row = await batch.row()
    assert (row.completed, row.failed) == (8, 4)
    assert {(c.model, c.lines, c.completed, c.failed) for c in row.models} == {("a", 6, 6, 0), ("b", 6, 2, 4)}


async def test_many_reused_results_are_written_in_several_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("batchwright.activities.ingestion.resumption._SEGMENT_BYTES", 1000)
    batch = ResumedBatch(lines=40)
    await batch.end_with_files([batch.success(n) for n in range(40)], [])
    result = await batch.ingest()
    ended = await batch.finalize(result)
    assert ended.completed == 40


async def test_result_files_that_lack_a_line_are_refused_and_the_line_is_not_sent_again() -> None:
    batch = ResumedBatch()
    await batch.end_with_files([batch.success(n) for n in range(12) if n != 6], [])
    with pytest.raises(ApplicationError, match=f"line at byte {batch.offsets[6]}") as caught:
        await batch.ingest()
    assert (caught.value.type, caught.value.non_retryable) == (Failure.RESULTS_DAMAGED, True)


async def test_a_file_that_is_not_a_result_file_is_refused() -> None:
    batch = ResumedBatch()
    await batch.end_with_files([b'{"custom_id":"line-0"}'], [])
    with pytest.raises(ApplicationError, match="cannot be reused"):
        await batch.ingest()


async def test_a_batch_whose_source_batch_lost_its_files_fails_with_a_clear_message() -> None:
    batch = ResumedBatch()
    await batch.end_with_files([batch.success(n) for n in range(12)], [])
    await batch.database.files.delete(TENANT, derived_file_id(ORIGIN_ID, "output"))
    result = await batch.ingest()
    row = await batch.row()
    assert result.failed
    assert "no longer exists" in row.errors[0].message
    assert row.order.input_file_id == FILE_ID


async def test_files_with_a_result_for_an_unknown_line_are_refused() -> None:
    batch = ResumedBatch()
    more = error_line(request_id(ORIGIN_ID, 10_000_000), "stranger", LineCode.REQUEST_TIMEOUT, "why")
    await batch.end_with_files([batch.success(n) for n in range(12)], [more])
    with pytest.raises(ApplicationError, match="the input has no line for") as caught:
        await batch.ingest()
    assert (caught.value.type, caught.value.non_retryable) == (Failure.RESULTS_DAMAGED, True)


async def test_reused_failures_count_for_their_model_with_new_answers() -> None:
    batch = ResumedBatch()
    await batch.end_with_files(
        [batch.success(n) for n in range(12) if n not in (1, 3)],
        [batch.failure(1, LineCode.REQUEST_TIMEOUT), batch.failure(3, LineCode.BATCH_EXPIRED)],
    )
    result = await batch.ingest()
    await batch.settle([3])
    ended, row = await batch.finalize(result), await batch.row()
    assert (ended.completed, ended.failed, row.completed, row.failed) == (11, 1, 11, 1)
    assert {(c.model, c.lines, c.completed, c.failed) for c in row.models} == {("a", 6, 6, 0), ("b", 6, 5, 1)}
