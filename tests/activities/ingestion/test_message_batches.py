"""Message batches: if a request is invalid, only this request fails. Message batches have limits of their
own.
"""

import json

import pytest

from batchwright.contracts.temporal_payloads.batch import ErrorCount
from batchwright.contracts.terms import BatchStatus, Endpoint
from tests.activities.ingestion.fresh_batch import FreshBatch, a_line

PARAMS = {"model": "a", "max_tokens": 8, "messages": [{"role": "user", "content": "hi"}]}


def line(custom_id: str, params: object) -> bytes:
    url = Endpoint.MESSAGES.value
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": params}).encode()


async def a_message_batch(*lines: bytes, requests: int | None = None, **settings: object) -> FreshBatch:
    batch = FreshBatch(*lines, endpoint=Endpoint.MESSAGES, **settings)  # pyright: ignore[reportArgumentType]
    policy = batch.order.policy.model_copy(
        update={"message_requests": len(lines) if requests is None else requests}
    )
    batch.order = batch.order.model_copy(update={"policy": policy})
    await batch.upload()
    return batch


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (5, "Invalid type for 'body': expected an object, but got an integer instead."),
        (None, "Invalid type for 'body': expected an object, but got null instead."),
        ({**PARAMS, "stream": True}, "Messages: Streaming is not supported in the Batch API."),
        ({**PARAMS, "max_tokens": 0}, "Messages: max_tokens must be at least 1 in the Batch API."),
        ({**PARAMS, "model": None}, "Model parameter is required."),
        ({"model": "a"}, "Messages parameter is required."),
        ({**PARAMS, "Model": "b"}, "The name 'Model', which may be read as 'model', is ambiguous."),
        ({}, "Model parameter is required. Messages parameter is required."),
    ],
)
async def test_a_request_that_is_not_valid_fails_alone(params: object, message: str) -> None:
    batch = await a_message_batch(line("good", PARAMS), line("bad", params), line("other", PARAMS))
    result = await batch.ingest()
    assert (result.failed, result.total, result.unserved) == (False, 3, 1)
    assert [share.lines for share in result.models] == [2]
    [record] = batch.unserved(result)
    error = json.loads(record.payload)
    assert (error["custom_id"], error["error"]["code"]) == ("bad", "invalid_request")
    assert error["error"]["message"].startswith(message)
    row = await batch.row()
    assert (row.status, row.failed) == (BatchStatus.IN_PROGRESS, 1)
    [count] = row.ingestion_errors
    assert count == ErrorCount(code="invalid_request", model="", count=1, example=count.example)


async def test_a_request_whose_body_was_too_large_to_store_fails_alone_with_the_limit() -> None:
    large = b'{"custom_id":"large","method":"POST","url":"/v1/messages"}'
    batch = await a_message_batch(line("good", PARAMS), large, max_line_bytes=2000)
    result = await batch.ingest()
    assert (result.failed, result.total, result.unserved) == (False, 2, 1)
    [record] = batch.unserved(result)
    error = json.loads(record.payload)
    assert (error["custom_id"], error["error"]["code"]) == ("large", "invalid_request")
    assert error["error"]["message"].startswith("The request is too large: it may have at most 2000 bytes.")


async def test_the_same_request_fails_a_batch_of_openais_api() -> None:
    batch = await a_message_batch(line("good", PARAMS), line("bad", 5), requests=0)
    assert (await batch.ingest()).failed
    assert [(error.code, error.line) for error in (await batch.row()).errors] == [("invalid_type", 2)]


async def test_a_model_that_no_backend_serves_fails_alone_also_with_strict_models() -> None:
    lines = (line("good", PARAMS), line("bad", {**PARAMS, "model": "unknown"}))
    batch = await a_message_batch(*lines, strict_models=True)
    result = await batch.ingest()
    assert (result.failed, result.unserved) == (False, 1)


async def test_the_limits_of_other_batches_do_not_apply() -> None:
    lines = [line(f"r{n}", PARAMS) for n in range(3)]
    batch = await a_message_batch(*lines, max_lines=1, max_batch_file_bytes=1, max_message_requests=3)
    assert (await batch.ingest()).total == 3
    batch = await a_message_batch(*lines, max_message_requests=2)
    assert (await batch.ingest()).failed
    batch = FreshBatch(a_line("a"), a_line("b"), max_lines=1)
    await batch.upload()
    assert (await batch.ingest()).failed
