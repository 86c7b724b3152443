"""Lines of result files, read again."""

import pytest

from batchwright.contracts.errors import LineCode
from batchwright.contracts.openai import Usage
from batchwright.rules.answers import error_line, result_line
from batchwright.rules.ids import RequestIds, request_id
from batchwright.rules.results import (
    HEAD_BYTES,
    ResultDamaged,
    digest_of,
    id_digest,
    line_id,
    settles,
    usage_in,
    with_id,
)

ID = request_id("batch_1", 0)
OTHER = request_id("batch_2", 0)
LINE = result_line(ID, "a", status_code=200, backend_request_id="", body=b'{"usage":{"prompt_tokens":3}}')


def test_a_line_tells_its_id_by_its_first_bytes() -> None:
    assert line_id(LINE[:HEAD_BYTES]) == ID
    assert id_digest(LINE[:HEAD_BYTES]) == digest_of(ID)


def test_a_line_under_another_id_is_otherwise_the_same() -> None:
    other = with_id(LINE, OTHER)
    assert line_id(other) == OTHER
    assert other[HEAD_BYTES:] == LINE[HEAD_BYTES:]


@pytest.mark.parametrize("line", [b"", b"{}", b'{"id":"x"}', LINE[: HEAD_BYTES - 1], b" " + LINE])
def test_what_is_no_line_of_results_is_refused(line: bytes) -> None:
    with pytest.raises(ResultDamaged):
        line_id(line)


@pytest.mark.parametrize("code", LineCode)
def test_only_the_end_of_a_batch_leaves_a_line_unsettled(code: LineCode) -> None:
    never = {LineCode.BATCH_EXPIRED, LineCode.BATCH_CANCELLED, LineCode.BATCH_FAILED}
    assert settles(error_line(ID, "a", code, "why")) is (code not in never)


def test_an_answer_settles_whatever_its_body_says() -> None:
    body = b'{"error":{"code":"batch_expired"}}'
    assert settles(result_line(ID, "a", status_code=400, backend_request_id="", body=body))


def test_the_usage_is_that_of_the_answer() -> None:
    assert usage_in(LINE) == Usage(input_tokens=3)
    assert usage_in(error_line(ID, "a", LineCode.BATCH_EXPIRED, "why")) == Usage()


def test_half_a_line_is_damaged() -> None:
    with pytest.raises(ResultDamaged):
        settles(LINE[:-5])


def test_ids_of_many_requests_are_those_of_each() -> None:
    ids = RequestIds("batch_1")
    assert [ids.of(offset) for offset in (0, 7, 2**40)] == [
        request_id("batch_1", offset) for offset in (0, 7, 2**40)
    ]
