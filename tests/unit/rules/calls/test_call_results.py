"""Results of calls (single requests) can be read everywhere, however deeply the backend's
response is nested.
"""

import pytest

from batchwright.contracts.calls import CallStatus
from batchwright.contracts.errors import LineCode
from batchwright.rules.backends.response_checks import find_problem
from batchwright.rules.calls.call_results import CallResult, answers_of, read_result
from batchwright.rules.results.output_lines import json_value, result_line

LINE_ID = "batch_req_" + 32 * "0"


def nested(depth: int) -> bytes:
    return b'{"choices":' + b"[" * depth + b"]" * depth + b"}"


def line_of(body: bytes) -> bytes:
    return result_line(LINE_ID, "job_1", status_code=200, backend_request_id="r", body=body, known_json=True)


def read_below(line: bytes, frames: int) -> CallResult:
    return read_below(line, frames - 1) if frames else read_result(line)


@pytest.mark.parametrize("padding", [b"", b" " * 100_000], ids=["short", "long"])
def test_the_deepest_response_accepted_can_be_read_from_deeper_in_the_stack(padding: bytes) -> None:
    deepest = max(
        depth for depth in range(100, 1_000, 10) if find_problem(200, nested(depth) + padding) is None
    )
    assert deepest > 300
    response = read_below(line_of(nested(deepest)), 150).response
    assert response is not None
    assert bytes(response.body) == nested(deepest)


def test_a_response_that_is_nested_too_deeply_is_not_a_result() -> None:
    problem = find_problem(200, nested(5_000))
    assert problem is not None
    assert (
        problem.message == "The backend answered 200 with a body that is not JSON, or is nested too deeply."
    )
    assert json_value(nested(5_000)).startswith(b'"{')


def test_a_stored_result_that_cannot_be_read_is_an_error_of_its_call() -> None:
    line = line_of(nested(5_000))
    result = read_result(line)
    assert (result.custom_id, result.response) == ("job_1", None)
    assert result.error is not None
    assert (result.error.code, "nested too deeply" in result.error.message) == (
        LineCode.INVALID_RESPONSE,
        True,
    )
    assert [(answer.id, answer.status) for answer in answers_of([line])] == [("job_1", CallStatus.FAILED)]
