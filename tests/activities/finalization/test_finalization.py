"""Finalization writes every line once, in input order, whatever earlier attempts have stored."""

from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchwright.activities.execution.slice_state.line_queue import LineAttempt
from batchwright.activities.stored_results.input_order_index import ResultIndex
from batchwright.activities.stored_results.result_spool import ResultSpool
from batchwright.contracts.errors import LineCode
from batchwright.contracts.temporal_payloads.batch import ModelCounts
from batchwright.contracts.temporal_payloads.finalization import FinalizeResult
from batchwright.contracts.terms import BatchStatus, Usage, ValidationError
from batchwright.rules.results.segment_format import RecordKind, SegmentRecord
from batchwright.storage.base import StorageFull, StorageUnavailable
from batchwright.storage.local import LocalStorage
from tests.activities.finalization.settled_batch import (
    BATCH_ID,
    INPUT_KEY,
    TENANT,
    SettledBatch,
    a_batch,
    a_segment,
    names,
)


async def test_files_are_in_input_order() -> None:
    batch = await a_batch(lines=5)
    await batch.put([batch.success(4), batch.failure(3), batch.success(0)], sequence=0)
    await batch.put([batch.failure(1), batch.success(2)], sequence=1)
    result = await batch.finalize()
    assert result == FinalizeResult(
        status=BatchStatus.COMPLETED, completed=3, failed=2, failed_by_code={"request_timeout": 2}
    )
    assert await batch.ids("output") == names([0, 2, 4])
    assert await batch.ids("error") == names([1, 3])


async def test_results_are_written_byte_for_byte() -> None:
    batch = await a_batch(lines=1)
    record = batch.success(0, answer=r"ä \u00e4")
    await batch.put([record])
    await batch.finalize()
    assert await batch.content("output") == record.payload + b"\n"


async def test_the_row_has_the_counts_of_the_files() -> None:
    batch = await a_batch(lines=3)
    await batch.put([batch.success(0, tokens=3), batch.failure(1), batch.success(2, tokens=4)])
    await batch.finalize()
    row = await batch.database.batches.get(TENANT, BATCH_ID)
    output = await batch.file("output")
    assert row is not None
    assert output is not None
    assert (row.status, row.total, row.completed, row.failed) == (BatchStatus.COMPLETED, 3, 2, 1)
    assert row.usage == Usage(input_tokens=7)
    assert [(each.requests, each.input_tokens) for each in row.model_usage] == [(2, 7), (0, 0)]
    assert row.output_file_id == output.id
    assert output.filename == f"{BATCH_ID}_output.jsonl"
    assert output.bytes == len(await batch.content("output"))


@pytest.mark.parametrize("status", [BatchStatus.COMPLETED, BatchStatus.EXPIRED])
async def test_the_row_has_exact_counts_per_model(status: BatchStatus) -> None:
    """The counts that workers reported are replaced. Lines 1 and 4 are for a model that no backend serves."""
    batch = await a_batch(lines=9, models=("a", "b"), unserved=[1, 4])
    await batch.put([batch.success(0), batch.failure(2), batch.success(3), batch.failure(3)])
    await batch.put([batch.success(5), batch.success(6), batch.failure(7)], sequence=1)
    if status is BatchStatus.COMPLETED:
        await batch.put([batch.success(8)], sequence=2)
    await batch.finalize(batch.request(status, LineCode.BATCH_EXPIRED))
    row = await batch.database.batches.get(TENANT, BATCH_ID)
    assert row is not None
    last = 1 if status is BatchStatus.COMPLETED else 0
    assert row.models == [
        ModelCounts(model="a", lines=4, completed=2 + last, failed=2 - last),
        ModelCounts(model="b", lines=3, completed=2, failed=1),
        ModelCounts(model="ghost", lines=2, failed=2),
    ]
    assert row.completed == sum(model.completed for model in row.models)
    assert row.failed == sum(model.failed for model in row.models)


async def test_temporary_objects_are_deleted_and_only_files_remain() -> None:
    batch = await a_batch(lines=2)
    await batch.put([batch.success(0), batch.failure(1)])
    await batch.finalize()
    files = [await batch.file("output"), await batch.file("error")]
    assert {INPUT_KEY, *(row.storage_key for row in files if row)} == set(batch.memory.objects)


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (BatchStatus.EXPIRED, LineCode.BATCH_EXPIRED),
        (BatchStatus.CANCELLED, LineCode.BATCH_CANCELLED),
        (BatchStatus.FAILED, LineCode.BATCH_FAILED),
    ],
)
@pytest.mark.parametrize("ending", ["\n", "\r\n", "\n\n"])
async def test_results_are_kept_and_unsettled_lines_have_an_error_with_the_reason(
    status: BatchStatus, code: LineCode, ending: str
) -> None:
    batch = await a_batch(lines=5, ending=ending)
    await batch.put([batch.success(2), batch.failure(1)])
    result = await batch.finalize(batch.request(status, code))
    assert result == FinalizeResult(
        status=status, completed=1, failed=4, failed_by_code={code: 3, "request_timeout": 1}
    )
    assert await batch.ids("output") == names([2])
    errors = {line.custom_id: line.error and line.error["code"] for line in await batch.written("error")}
    assert errors == {
        "line-0": code,
        "line-1": LineCode.REQUEST_TIMEOUT,
        "line-3": code,
        "line-4": code,
    }


async def test_an_expired_line_has_the_error_of_openai() -> None:
    batch = await a_batch(lines=1)
    await batch.finalize(batch.request(BatchStatus.EXPIRED, LineCode.BATCH_EXPIRED))
    (line,) = await batch.written("error")
    message = "This request could not be executed before the completion window expired."
    assert line.error == {"code": "batch_expired", "message": message}
    assert bytes(line.response) == b"null"
    assert line.id.startswith("batch_req_")


async def test_an_expired_line_quotes_its_last_error() -> None:
    batch = await a_batch(lines=3)
    tries = [(0, 0, "no GPU"), (2, 1, "late"), (2, 0, "early")]
    await batch.put(
        [
            SegmentRecord(
                RecordKind.ATTEMPT,
                batch.lines[number].offset,
                LineAttempt(count=count, backend_error=answered).model_dump_json().encode(),
            )
            for number, count, answered in tries
        ]
    )
    await batch.finalize(batch.request(BatchStatus.EXPIRED, LineCode.BATCH_EXPIRED))
    expired = "This request could not be executed before the completion window expired."
    messages = [line.error and line.error["message"] for line in await batch.written("error")]
    assert messages == [
        f"{expired} The backend's last error: no GPU",
        expired,
        f"{expired} The backend's last error: late",
    ]


async def test_only_a_completed_batch_has_the_time_of_finalizing() -> None:
    completed, expired = await a_batch(lines=1), await a_batch(lines=1)
    await completed.put([completed.success(0)])
    await completed.finalize()
    await expired.finalize(expired.request(BatchStatus.EXPIRED, LineCode.BATCH_EXPIRED))
    rows = [await batch.database.batches.get(TENANT, BATCH_ID) for batch in (completed, expired)]
    assert [row is not None and row.finalizing_at is not None for row in rows] == [True, False]


async def test_a_batch_whose_lines_all_failed_is_completed_without_an_output_file() -> None:
    batch = await a_batch(lines=2)
    await batch.put([batch.failure(0), batch.failure(1)])
    result = await batch.finalize()
    row = await batch.database.batches.get(TENANT, BATCH_ID)
    assert result == FinalizeResult(
        status=BatchStatus.COMPLETED, failed=2, failed_by_code={"request_timeout": 2}
    )
    assert row is not None
    assert row.output_file_id is None
    assert row.error_file_id is not None


async def test_a_batch_without_failures_has_no_error_file() -> None:
    batch = await a_batch(lines=1)
    await batch.put([batch.success(0)])
    await batch.finalize()
    assert await batch.file("error") is None


async def test_lines_of_unserved_models_are_in_the_error_file() -> None:
    batch = await a_batch(lines=3, unserved=[1])
    await batch.put([batch.success(0), batch.success(2)])
    result = await batch.finalize()
    assert result == FinalizeResult(status=BatchStatus.COMPLETED, completed=2, failed=1)
    assert await batch.ids("error") == names([1])


async def test_of_two_results_the_success_counts() -> None:
    batch = await a_batch(lines=1)
    await batch.put([batch.failure(0)], attempt=1)
    await batch.put([batch.success(0)], attempt=2)
    assert await batch.finalize() == FinalizeResult(status=BatchStatus.COMPLETED, completed=1)


async def test_of_two_successes_the_earlier_segment_counts() -> None:
    batch = await a_batch(lines=1)
    await batch.put([batch.success(0, "later", tokens=5)], attempt=2)
    await batch.put([batch.success(0, "earlier", tokens=2)], attempt=1)
    result = await batch.finalize()
    assert b"earlier" in await batch.content("output")
    assert result.usage == Usage(input_tokens=2)


def test_the_selected_result_does_not_depend_on_the_reading_order(tmp_path: Path) -> None:
    batch = SettledBatch(lines=1)
    with ResultSpool(tmp_path) as spool:
        index = ResultIndex(spool)
        for name in ("2-later", "1-earlier"):
            index.add_segment(name, a_segment([batch.success(0, name)]))
        (block,) = index.line_blocks(index.select().output)
    assert b"1-earlier" in block


async def test_records_of_attempts_are_not_results() -> None:
    batch = await a_batch(lines=1)
    await batch.put([SegmentRecord(RecordKind.ATTEMPT, 0, b'{"count":1}')])
    result = await batch.finalize(batch.request(BatchStatus.CANCELLED, LineCode.BATCH_CANCELLED))
    assert result == FinalizeResult(
        status=BatchStatus.CANCELLED, failed=1, failed_by_code={"batch_cancelled": 1}
    )


async def test_why_the_system_failed_it_is_in_the_row() -> None:
    batch = await a_batch(lines=1)
    errors = [ValidationError(code="system_error", message="The plan is damaged.")]
    await batch.finalize(batch.request(BatchStatus.FAILED, LineCode.BATCH_FAILED, errors))
    row = await batch.database.batches.get(TENANT, BATCH_ID)
    assert row is not None
    assert row.errors == errors


async def test_files_expire_as_the_batch_requested_or_as_its_end_status_defines() -> None:
    requested, whole, partial = [await a_batch(lines=1) for _ in range(3)]
    requested.order = requested.order.model_copy(update={"output_expires_after_seconds": 3600})
    for batch in (requested, whole, partial):
        await batch.put([batch.success(0)])
    await requested.finalize()
    await whole.finalize()
    await partial.finalize(partial.request(BatchStatus.EXPIRED))
    assert await life(requested) == timedelta(hours=1)
    assert await life(whole) == timedelta(days=30)
    assert await life(partial) == timedelta(days=14)


async def test_ends_are_counted_once() -> None:
    batch = await a_batch(lines=1)
    await batch.put([batch.success(0)])
    await batch.finalize()
    await batch.finalize()
    count = batch.metrics.registry.get_sample_value
    assert count("batchwright_jobs_processed_total", {"result": "success", "reason": "none"}) == 1
    assert count("batchwright_batch_job_e2e_latency_seconds_count", {"status": "completed"}) == 1
    assert count("batchwright_finalize_latency_seconds_count") == 1


async def test_files_on_disk_are_the_same(storage: LocalStorage) -> None:
    batch = await a_batch(lines=4, storage=storage)
    await batch.put([batch.success(3), batch.success(1)])
    await batch.finalize(batch.request(BatchStatus.CANCELLED, LineCode.BATCH_CANCELLED))
    assert await batch.ids("output") == names([1, 3])
    assert await batch.ids("error") == names([0, 2])


def test_the_error_for_a_full_disk_names_the_setting_to_change(tmp_path: Path) -> None:
    with (
        ResultSpool(tmp_path) as spool,
        pytest.raises(StorageFull, match=r"^Finalization needs .*_SPOOL_DIR"),
    ):
        spool.require(2**62)


def test_the_error_for_an_invalid_scratch_directory_names_the_setting(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageUnavailable, match=r"file/x cannot be used: .* Set BATCHWRIGHT_SPOOL_DIR"):
        ResultSpool(tmp_path / "file" / "x")


Settlements = st.lists(st.lists(st.tuples(st.integers(0, 11), st.booleans()), max_size=6), max_size=6)


@given(segments=Settlements, unserved=st.frozensets(st.integers(0, 11)), lost=st.booleans())
async def test_every_line_is_in_the_files_once_and_in_order(
    segments: list[list[tuple[int, bool]]], unserved: frozenset[int], lost: bool
) -> None:
    batch = await a_batch(lines=12, models=("a", "b", "c"), unserved=unserved)
    settled = [[(n, ok) for n, ok in segment if n not in unserved] for segment in segments]
    for sequence, segment in enumerate(settled):
        records = [batch.success(n) if ok else batch.failure(n) for n, ok in segment]
        await batch.put(records, sequence=sequence)
    if lost:
        await batch.storage.delete(INPUT_KEY)
    result = await batch.finalize(batch.request(BatchStatus.EXPIRED, LineCode.BATCH_EXPIRED))
    won = sorted({n for segment in settled for n, ok in segment if ok})
    assert await batch.ids("output") == names(won)
    assert await batch.ids("error") == names(n for n in range(12) if n not in won)
    assert (result.completed, result.failed) == (len(won), 12 - len(won))


async def life(batch: SettledBatch) -> timedelta | None:
    row = await batch.file("output")
    return row and row.expires_at and row.expires_at - row.created_at
