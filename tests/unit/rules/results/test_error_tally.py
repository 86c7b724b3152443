"""The counts of failed lines by error code and model."""

import json

import pytest

from batchwright.contracts.errors import LineCode
from batchwright.contracts.temporal_payloads.batch import ErrorCount, ErrorExample
from batchwright.rules.results.error_tally import MAX_GROUPS, ErrorTally, line_error
from batchwright.rules.results.output_lines import error_line, result_line


def test_a_line_without_a_response_has_the_code_of_its_error() -> None:
    line = error_line("batch_req_1", "a", LineCode.BATCH_EXPIRED, "too late")
    example = ErrorExample(custom_id="a", message="too late")
    assert line_error(line, "m") == ErrorCount(code="batch_expired", model="m", count=1, example=example)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error":{"code":"context_length_exceeded","message":"too long"}}', "too long"),
        (b'{"error":"no such role"}', "no such role"),
        (b"<html>", "<html>"),
        (b"", "HTTP 400"),
    ],
)
def test_a_line_with_an_error_response_has_the_status_as_code(body: bytes, message: str) -> None:
    line = result_line("batch_req_1", "a", status_code=400, backend_request_id="", body=body)
    found = line_error(line)
    assert (found.code, found.example.custom_id) == ("http_400", "a")
    assert found.example.message == message


def test_the_message_is_cut_to_300_characters() -> None:
    line = error_line("batch_req_1", "a", LineCode.INVALID_RESPONSE, "é" * 301)
    assert line_error(line).example.message == "é" * 300


def test_text_that_the_database_cannot_store_is_replaced() -> None:
    line = json.dumps({"custom_id": "a\x00", "error": {"code": "c", "message": "\ud800"}}).encode()
    assert line_error(line).example == ErrorExample(custom_id="a\ufffd", message="\ufffd")


@pytest.mark.parametrize("line", [b"", b"{", b"[]", b'{"error":7}', b'{"response":{}}', b"[" * 100_000])
def test_a_line_that_cannot_be_read_counts_as_other(line: bytes) -> None:
    assert line_error(line, "m") == ErrorCount(code="other", model="m", count=1)


def an_error(code: str, model: str | None = "m", count: int = 1, custom_id: str = "") -> ErrorCount:
    return ErrorCount(code=code, model=model, count=count, example=ErrorExample(custom_id=custom_id))


def test_counts_of_a_code_and_model_are_added_and_the_first_example_stays() -> None:
    errors = [an_error("b"), an_error("a", custom_id="first"), an_error("a", count=2), an_error("a", "n")]
    assert ErrorTally(errors).counts() == [
        an_error("a", count=3, custom_id="first"),
        an_error("a", "n"),
        an_error("b"),
    ]


def test_groups_are_limited_and_every_line_stays_counted() -> None:
    models = [an_error("a", f"model-{number}") for number in range(100)]
    codes = [an_error(f"code-{number}") for number in range(100)]
    counts = ErrorTally([*models, *codes]).counts()
    assert len(counts) == 2 * MAX_GROUPS + 1
    assert sum(error.count for error in counts) == 200
    by_group = {(error.code, error.model): error.count for error in counts}
    assert by_group["a", None] == 100 - MAX_GROUPS
    assert by_group["other", None] == 100 - (MAX_GROUPS - 1)
