"""Lines of output and error files, written and read again."""

import json

import pytest

from batchwright.contracts.errors import LineCode
from batchwright.contracts.terms import Usage
from batchwright.rules.backends.response_checks import find_problem
from batchwright.rules.ids import RequestIds, request_id
from batchwright.rules.json_text import is_json
from batchwright.rules.results.output_lines import (
    HEAD_BYTES,
    MAX_TEXT_BYTES,
    ResultDamaged,
    copy_result,
    error_line,
    id_digest,
    is_settled_result,
    json_value,
    line_id,
    request_digest,
    result_line,
    usage_of_line,
    with_id,
)
from batchwright.rules.results.token_usage import tokens_of


def result(body: bytes) -> bytes:
    return result_line("batch_req_1", "a", status_code=200, backend_request_id="r", body=body)


def test_a_result_line_has_openais_shape() -> None:
    assert json.loads(result(b'{"x":1}')) == {
        "id": "batch_req_1",
        "custom_id": "a",
        "response": {"status_code": 200, "request_id": "r", "body": {"x": 1}},
        "error": None,
    }


def test_an_error_line_has_openais_shape() -> None:
    line = error_line("batch_req_1", 'quo"te\n', LineCode.BATCH_EXPIRED, "late")
    assert json.loads(line) == {
        "id": "batch_req_1",
        "custom_id": 'quo"te\n',
        "response": None,
        "error": {"code": "batch_expired", "message": "late"},
    }
    assert b"\n" not in line


@pytest.mark.parametrize(
    "body",
    [
        b'{"b":1,"a":2,"b":3}',
        b'{"n":123456789012345678901234567890.10}',
        b'{ "spaced" : [ 1 , 2 ] }',
        b'{"escapes":"\\u00e9\\/\\n"}',
        '{"text":"é\u2028"}'.encode(),
        b"[]",
        b'"text"',
        b"null",
    ],
)
def test_a_body_is_spliced_in_byte_for_byte(body: bytes) -> None:
    assert b'"body":' + body + b'},"error":null}' in result(body)


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (b'{\r\n  "a": 1,\n  "b": "x\\ny"\r\n}\n', b'{  "a": 1,  "b": "x\\ny"}'),
        (b"\n 1 \r\n", b"1"),
        (b"[\n]", b"[]"),
    ],
)
def test_line_breaks_between_values_are_dropped(body: bytes, value: bytes) -> None:
    assert json_value(body) == value


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"{", b'{"a":1} trailing', b"\xff\xfe", b'"\xff"', b"[" * 100_000]
)
def test_a_body_that_is_not_json_becomes_a_string(body: bytes) -> None:
    assert not is_json(body)
    text = json.loads(json_value(body))
    assert text == body[:MAX_TEXT_BYTES].decode(errors="replace")


def test_text_is_cut_at_64_kib() -> None:
    assert json.loads(json_value(b"x" * 100_000)) == "x" * 65_536


@pytest.mark.parametrize(
    "half", [rb"\ud800", rb"\udfff", rb"\uD83dx", rb"\ud800\ud800", rb"\udc00\ud83d\ude00"]
)
def test_an_answer_with_half_of_a_surrogate_pair_is_a_result_as_the_standard_library_reads_it(
    half: bytes,
) -> None:
    body = b'{"choices":[{"text":"' + half + b'"}],"error":null,"usage":{"prompt_tokens":3}}'
    assert find_problem(200, body) is None
    assert tokens_of(body).input_tokens == 3
    id = "batch_req_" + "0" * 32
    line = result_line(id, "a", status_code=200, backend_request_id="", body=body)
    assert body in line
    assert json.loads(line)["response"]["body"] == json.loads(body)
    assert is_settled_result(line)
    assert usage_of_line(line).input_tokens == 3


@pytest.mark.parametrize("body", [rb'"\ud8"', rb'"\ud800\udc0"', b'"\xed\xa0\x80"', rb'"\ud800'])
def test_other_broken_escapes_are_not_json(body: bytes) -> None:
    assert not is_json(body)


ID = request_id("batch_1", 0)


OTHER = request_id("batch_2", 0)


LINE = result_line(ID, "a", status_code=200, backend_request_id="", body=b'{"usage":{"prompt_tokens":3}}')


def test_the_id_of_a_line_is_read_from_its_first_bytes() -> None:
    assert line_id(LINE[:HEAD_BYTES]) == ID
    assert id_digest(LINE[:HEAD_BYTES]) == request_digest(ID)


def test_a_line_under_another_id_is_otherwise_the_same() -> None:
    other = with_id(LINE, OTHER)
    assert line_id(other) == OTHER
    assert other[HEAD_BYTES:] == LINE[HEAD_BYTES:]


@pytest.mark.parametrize("line", [b"", b"{}", b'{"id":"x"}', LINE[: HEAD_BYTES - 1], b" " + LINE])
def test_a_line_that_is_not_a_result_is_refused(line: bytes) -> None:
    with pytest.raises(ResultDamaged):
        line_id(line)


@pytest.mark.parametrize("code", LineCode)
def test_only_the_end_of_a_batch_leaves_a_line_unsettled(code: LineCode) -> None:
    never = {
        LineCode.BATCH_EXPIRED,
        LineCode.BATCH_CANCELLED,
        LineCode.BATCH_FAILED,
        LineCode.BUDGET_EXCEEDED,
    }
    assert is_settled_result(error_line(ID, "a", code, "why")) is (code not in never)


def test_an_answer_settles_the_line_regardless_of_its_body() -> None:
    body = b'{"error":{"code":"batch_expired"}}'
    assert is_settled_result(result_line(ID, "a", status_code=400, backend_request_id="", body=body))


def test_the_usage_is_that_of_the_answer() -> None:
    assert usage_of_line(LINE) == Usage(input_tokens=3)
    assert usage_of_line(error_line(ID, "a", LineCode.BATCH_EXPIRED, "why")) == Usage()


def test_a_truncated_line_is_damaged() -> None:
    with pytest.raises(ResultDamaged):
        is_settled_result(LINE[:-5])


def test_ids_made_in_bulk_equal_those_made_one_by_one() -> None:
    ids = RequestIds("batch_1")
    assert [ids.of(offset) for offset in (0, 7, 2**40)] == [
        request_id("batch_1", offset) for offset in (0, 7, 2**40)
    ]


@pytest.mark.parametrize("first", ["a", '"', '\\"', "\\", 'é\n","response":', "\\\\\\"])
@pytest.mark.parametrize("second", ["b", '"]}', "😀"])
def test_a_line_gets_the_answer_of_another_under_its_own_ids(first: str, second: str) -> None:
    body = b'{"custom_id":"x", "usage": {"total_tokens": 3}}'

    def line(offset: int, custom_id: str) -> bytes:
        id = request_id("batch_1", offset)
        return result_line(id, custom_id, status_code=200, backend_request_id="r", body=body)

    assert copy_result(line(0, first), request_id("batch_1", 7), second) == line(7, second)


def test_an_error_is_copied_too() -> None:
    def line(offset: int, custom_id: str) -> bytes:
        return error_line(request_id("batch_1", offset), custom_id, LineCode.REQUEST_TIMEOUT, 'so "it" is')

    assert copy_result(line(0, "a"), request_id("batch_1", 7), "b") == line(7, "b")


@pytest.mark.parametrize("line", [b"", b'{"id":"batch_req_', b'{"id":"x","custom_id":"a'])
def test_a_line_that_is_not_a_result_is_not_copied(line: bytes) -> None:
    with pytest.raises(ResultDamaged):
        copy_result(line, request_id("batch_1", 0), "a")


def test_a_result_whose_custom_id_never_ends_is_not_copied() -> None:
    line = error_line(request_id("batch_1", 0), "a", LineCode.REQUEST_TIMEOUT, "")
    with pytest.raises(ResultDamaged):
        copy_result(line[: line.index(b'"a"') + 2], request_id("batch_1", 1), "b")
