"""The errors of an ended batch, counted by code and model over all lines of its error file."""

import json

import pytest

from batchwright.contracts.errors import LINE_MESSAGES, LineCode
from batchwright.contracts.temporal_payloads.batch import ErrorCount, ErrorExample
from batchwright.contracts.terms import BatchStatus
from batchwright.rules.results.output_lines import result_line
from batchwright.rules.results.segment_format import RecordKind, SegmentRecord
from tests.activities.finalization.settled_batch import BATCH_ID, TENANT, SettledBatch, a_batch
from tests.activities.finalization.test_duplicate_results import Repetitive


async def summary(batch: SettledBatch | Repetitive) -> list[ErrorCount]:
    row = await batch.database.batches.get(TENANT, BATCH_ID)
    assert row is not None
    return row.errors_summary


def an_error(code: str, model: str | None, count: int, custom_id: str, message: str) -> ErrorCount:
    example = ErrorExample(custom_id=custom_id, message=message)
    return ErrorCount(code=code, model=model, count=count, example=example)


async def test_a_batch_without_failed_lines_has_no_errors() -> None:
    batch = await a_batch(lines=1, models=("a",))
    await batch.put([batch.success(0)])
    await batch.finalize()
    assert await summary(batch) == []


async def test_failed_lines_are_counted_by_code_with_one_example() -> None:
    batch = await a_batch(lines=4, models=("a",))
    body = b'{"error":{"message":"too long"}}'
    line = result_line("batch_req_" + "0" * 32, "line-2", status_code=400, backend_request_id="", body=body)
    await batch.put([batch.failure(3), batch.success(0), batch.failure(1)])
    await batch.put([SegmentRecord(RecordKind.SETTLED, batch.lines[2].offset, line)], sequence=1)
    await batch.finalize()
    assert await summary(batch) == [
        an_error("request_timeout", "a", 2, "line-1", "why"),
        an_error("http_400", "a", 1, "line-2", "too long"),
    ]


async def test_a_line_that_failed_and_then_succeeded_has_no_error() -> None:
    batch = await a_batch(lines=1, models=("a",))
    await batch.put([batch.failure(0)])
    await batch.put([batch.success(0)], attempt=2)
    await batch.finalize()
    assert await summary(batch) == []


async def test_lines_without_a_result_count_with_the_reason_of_the_end_for_each_model() -> None:
    batch = await a_batch(lines=5)
    await batch.put([batch.success(0)])
    await batch.finalize(batch.request(BatchStatus.EXPIRED, LineCode.BATCH_EXPIRED))
    message = LINE_MESSAGES[LineCode.BATCH_EXPIRED]
    assert await summary(batch) == [
        an_error("batch_expired", "a", 2, "line-4", message),
        an_error("batch_expired", "b", 2, "line-3", message),
    ]


async def test_lines_that_failed_in_ingestion_count_as_ingestion_reported_them() -> None:
    refused = an_error("model_not_found", "ghost", 1, "line-1", "not served")
    batch = SettledBatch(lines=2, models=("a",), unserved=[1], ingestion_errors=[refused])
    await batch.prepare()
    await batch.put([batch.failure(0)])
    await batch.finalize()
    assert await summary(batch) == [refused, an_error("request_timeout", "a", 1, "line-0", "why")]


async def test_a_duplicate_of_a_failed_line_is_a_failed_line() -> None:
    batch = Repetitive("hi", "hi", "hi", "other")
    result = await batch.ingested()
    await batch.settle(0, code=0)
    await batch.settle(3)
    await batch.finalized(result)
    assert await summary(batch) == [an_error("request_timeout", "a", 3, "line-0", "late")]


@pytest.mark.parametrize("status", [BatchStatus.COMPLETED, BatchStatus.CANCELLED])
async def test_the_summary_adds_up_to_the_lines_of_the_error_file(status: BatchStatus) -> None:
    batch = await a_batch(lines=9, unserved=[4])
    await batch.put([batch.success(0), batch.failure(2), batch.failure(6, LineCode.INVALID_RESPONSE)])
    await batch.finalize(batch.request(status, LineCode.BATCH_CANCELLED))
    codes = [json.loads(line)["error"]["code"] for line in (await batch.content("error")).splitlines()]
    codes.remove("model_not_found")  # counted by ingestion
    assert sorted(codes) == sorted(error.code for error in await summary(batch) for _ in range(error.count))
