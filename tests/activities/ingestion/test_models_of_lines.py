"""Models of a batch's lines: those that no backend serves, the default model, and backends for any model."""

from datetime import timedelta

import pytest
from temporalio.exceptions import ApplicationError

from batchwright.activities.ingestion import publisher
from batchwright.contracts.errors import Failure, LineCode
from batchwright.contracts.temporal_payloads.batch import ErrorCount, ErrorExample
from batchwright.contracts.temporal_payloads.ingestion import IngestResult
from batchwright.contracts.terms import BatchStatus, Endpoint, ValidationError
from batchwright.rules.ids import request_id
from batchwright.rules.results.output_lines import error_line
from batchwright.rules.results.segment_format import RecordKind, SegmentRecord
from batchwright.rules.stored_objects import object_keys
from tests.activities.ingestion.fresh_batch import (
    BATCH_ID,
    a_batch,
    a_line,
)


async def test_a_line_for_an_unserved_model_is_settled() -> None:
    batch = await a_batch(a_line("1"), a_line("2", "x"))
    result = await batch.ingest()
    offset = len(a_line("1")) + 1
    message = "The model 'x' is not served by any backend; GET /v1/models lists those that are."
    line = error_line(request_id(BATCH_ID, offset), "2", LineCode.MODEL_NOT_FOUND, message)
    assert batch.unserved(result) == [SegmentRecord(RecordKind.SETTLED, offset, line)]
    assert (result.total, result.unserved, [share.lines for share in result.models]) == (2, 1, [1])
    example = ErrorExample(custom_id="2", message=message)
    found = ErrorCount(code="model_not_found", model="x", count=1, example=example)
    assert (await batch.row()).errors_summary == [found]


async def test_the_results_of_many_unserved_lines_are_stored_in_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(publisher, "_PIECE_BYTES", 1000)
    batch = await a_batch(*[a_line(f"{n:0200}", "x") for n in range(30)])
    result = await batch.ingest()
    root = object_keys.unserved_root(result.ingest_prefix)
    sizes = [len(data) for key, data in batch.storage.objects.items() if key.startswith(root)]
    assert len(sizes) == 10
    assert max(sizes) < 2000
    assert len({record.offset for record in batch.unserved(result)}) == 30


async def test_a_batch_may_consist_of_unserved_lines() -> None:
    batch = await a_batch(a_line("1", "x"), a_line("2", "y"))
    result = await batch.ingest()
    assert result == IngestResult(ingest_prefix=result.ingest_prefix, total=2, unserved=2)
    assert (await batch.row()).failed == 2


async def test_many_unserved_models_are_counted_together() -> None:
    batch = await a_batch(*[a_line(str(n), f"model-{n}") for n in range(150)])
    await batch.ingest()
    models = (await batch.row()).models
    assert (len(models), sum(count.lines for count in models)) == (101, 150)


async def test_strict_models_fail_the_batch() -> None:
    batch = await a_batch(a_line("1"), a_line("2", "x"), strict_models=True)
    assert await batch.ingest() == IngestResult(failed=True, total=2, error_count=1)
    message = "The provided model 'x' is not supported by the Batch API."
    error = ValidationError(code="model_not_found", message=message, param="body.model", line=2)
    assert (await batch.row()).errors == [error]


async def test_the_default_model_serves_lines_without_one() -> None:
    batch = await a_batch(a_line("1", None), endpoint=Endpoint.RESPONSES, default_model="b")
    result = await batch.ingest()
    assert [(share.model, share.lines) for share in result.models] == [("b", 1)]


async def test_without_a_default_model_such_a_line_is_settled() -> None:
    batch = await a_batch(a_line("1", None), endpoint=Endpoint.RESPONSES)
    (record,) = batch.unserved(await batch.ingest())
    assert b"no default model for /v1/responses: name one in `model`." in record.payload


async def test_no_line_is_refused_while_no_backend_has_answered_yet() -> None:
    batch = await a_batch(a_line("1"), served=(), backends=["http://127.0.0.1:9"])
    with pytest.raises(ApplicationError) as raised:
        await batch.ingest()
    assert (raised.value.type, raised.value.non_retryable) == (Failure.DEFERRED, False)
    assert (await batch.row()).status is BatchStatus.VALIDATING


async def test_after_the_deadline_ingestion_waits_for_no_backend() -> None:
    batch = await a_batch(
        a_line("1"), served=(), backends=["http://127.0.0.1:9"], window=timedelta(seconds=-2)
    )
    result = await batch.ingest()
    assert (result.deadline_passed, result.unserved) == (True, 0)


async def test_a_model_that_no_backend_lists_is_planned_if_a_backend_accepts_any_model() -> None:
    batch = await a_batch(a_line("1", "a"), a_line("2", "base:lora"), a_line("3", "x" * 257))
    batch.accepts_any_model = True
    result = await batch.ingest()
    assert [share.model for share in result.models] == ["a", "base:lora"]
    assert result.unserved == 1


async def test_ingestion_waits_for_no_model_list_if_a_backend_accepts_any_model() -> None:
    batch = await a_batch(a_line("1", "a"), served=(), backends=["http://one"])
    batch.accepts_any_model = True
    assert [share.model for share in (await batch.ingest()).models] == ["a"]


@pytest.mark.parametrize("most", [2, 3])
async def test_more_models_than_allowed_fail_the_batch(most: int) -> None:
    lines = [a_line(str(number), f"m{number % 3}") for number in range(9)]
    batch = await a_batch(*lines, max_models_per_batch=most)
    batch.accepts_any_model = True
    result = await batch.ingest()
    assert result.failed is (most == 2)
    errors = [(error.code, error.message, error.param, error.line) for error in (await batch.row()).errors]
    message = "The batch names more than 2 models. Split it into several batches."
    assert errors == ([("too_many_models", message, "body.model", 3)] if most == 2 else [])


async def test_models_that_are_not_served_do_not_count_as_models_of_the_batch() -> None:
    lines = [a_line(str(number), f"m{number}") for number in range(9)]
    batch = await a_batch(*lines, a_line("10", "a"), max_models_per_batch=1)
    assert (await batch.ingest()).unserved == 9
