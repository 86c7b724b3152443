"""Results of a message batch: each line of the files becomes one result in Anthropic's form."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from batchwright.api.routes.anthropic.message_batch_results import results
from batchwright.contracts.errors import LINE_MESSAGES, LineCode
from batchwright.contracts.temporal_payloads.batch import BatchOrder, BatchPolicy
from batchwright.contracts.terms import BatchStatus, Endpoint, ValidationError
from batchwright.database.records import BatchRow, FileRow
from batchwright.rules.results.output_lines import error_line, result_line
from tests.fakes.storage import MemoryStorage

NOW = datetime(2026, 1, 1, tzinfo=UTC)
FILE = FileRow(
    id="file-1", tenant="t", purpose="batch_output", filename="x", bytes=1, created_at=NOW, storage_key="k"
)


def a_row(status: BatchStatus, **fields: object) -> BatchRow:
    order = BatchOrder(
        batch_id="batch_1",
        tenant="t",
        input_file_id=FILE.id,
        endpoint=Endpoint.MESSAGES,
        completion_window="24h",
        created_at=NOW,
        deadline=NOW + timedelta(hours=24),
        policy=BatchPolicy(message_requests=2),
    )
    return BatchRow(order=order, status=status, **fields)  # pyright: ignore[reportArgumentType]


async def translated(*lines: bytes, row: BatchRow | None = None) -> list[str]:
    storage = MemoryStorage()
    storage.objects[FILE.storage_key] = b"".join(line + b"\n" for line in lines)
    ended = row or a_row(BatchStatus.COMPLETED, output_file_id=FILE.id)
    found = b"".join([piece async for piece in results(ended, [FILE], storage)])
    return found.decode().splitlines()


def answered(status: int, body: bytes) -> bytes:
    return result_line("batch_req_1", "a", status_code=status, backend_request_id="r", body=body)


def error_of(result: str) -> tuple[str, str]:
    """Check that the result is an error in Anthropic's nested form. Return its type and message."""
    read = json.loads(result)
    assert (read["custom_id"], read["result"]["type"]) == ("a", "errored")
    error = read["result"]["error"]
    assert (sorted(error), error["type"], error["request_id"]) == (
        ["error", "request_id", "type"],
        "error",
        None,
    )
    assert sorted(error["error"]) == ["message", "type"]
    return error["error"]["type"], error["error"]["message"]


async def test_a_message_is_copied_byte_for_byte() -> None:
    body = r'{ "id":"msg_1","x":1.10e+2,"text":"\ud800 é","n":123456789012345678901234567890 }'
    [result] = await translated(answered(200, body.encode()))
    assert result == f'{{"custom_id":"a","result":{{"type":"succeeded","message":{body}}}}}'


@pytest.mark.parametrize(
    ("status", "body", "kind", "message"),
    [
        (
            400,
            {"type": "error", "error": {"type": "overloaded_error", "message": "m"}},
            "overloaded_error",
            "m",
        ),
        (404, {"error": {"message": "no", "type": "NotFoundError", "code": 404}}, "not_found_error", "no"),
        (422, {"detail": "wrong"}, "invalid_request_error", '{"detail": "wrong"}'),
        (500, {}, "api_error", "{}"),
    ],
)
async def test_an_error_of_the_backend_keeps_its_words(
    status: int, body: object, kind: str, message: str
) -> None:
    [result] = await translated(answered(status, json.dumps(body).encode()))
    assert error_of(result) == (kind, message)


async def test_an_error_that_is_not_json_is_quoted() -> None:
    [result] = await translated(answered(502, b"<html>no</html>"))
    assert error_of(result) == ("api_error", "<html>no</html>")


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (LineCode.INVALID_REQUEST, "invalid_request_error"),
        (LineCode.MODEL_NOT_FOUND, "not_found_error"),
        (LineCode.POLICY_REJECTED, "permission_error"),
        (LineCode.REQUEST_TIMEOUT, "timeout_error"),
        (LineCode.WORKER_CRASHED, "api_error"),
        (LineCode.BATCH_FAILED, "api_error"),
    ],
)
async def test_a_request_without_a_response_is_errored(code: LineCode, kind: str) -> None:
    [result] = await translated(error_line("batch_req_1", "a", code, "why"))
    assert error_of(result) == (kind, "why")


@pytest.mark.parametrize(
    ("code", "kind"), [(LineCode.BATCH_EXPIRED, "expired"), (LineCode.BATCH_CANCELLED, "canceled")]
)
async def test_an_unsent_request_is_expired_or_canceled(code: LineCode, kind: str) -> None:
    [result] = await translated(error_line("batch_req_1", "a", code, "why"))
    assert json.loads(result) == {"custom_id": "a", "result": {"type": kind}}


@pytest.mark.parametrize(
    ("status", "kind"), [(BatchStatus.CANCELLED, "canceled"), (BatchStatus.EXPIRED, "expired")]
)
async def test_a_batch_that_ended_without_files_has_a_result_for_each_request(
    status: BatchStatus, kind: str
) -> None:
    lines = [b'{"custom_id":"a","body":{}}', b'{"custom_id":"b","body":5}']
    found = await translated(*lines, row=a_row(status))
    assert list(map(json.loads, found)) == [
        {"custom_id": "a", "result": {"type": kind}},
        {"custom_id": "b", "result": {"type": kind}},
    ]


@pytest.mark.parametrize("said", ["the quota is used up", ""])
async def test_each_request_of_a_failed_batch_says_why(said: str) -> None:
    errors = [ValidationError(code="c", message=said)] if said else []
    [result] = await translated(b'{"custom_id":"a","body":{}}', row=a_row(BatchStatus.FAILED, errors=errors))
    assert error_of(result) == ("api_error", said or LINE_MESSAGES[LineCode.BATCH_FAILED])
