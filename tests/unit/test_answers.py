"""Lines of output and error files (R24)."""

import json

import pytest

from batchwright.contracts.errors import LineCode
from batchwright.rules.answers import MAX_TEXT_BYTES, error_line, is_json, json_value, result_line


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
def test_what_is_not_json_becomes_a_string(body: bytes) -> None:
    assert not is_json(body)
    text = json.loads(json_value(body))
    assert text == body[:MAX_TEXT_BYTES].decode(errors="replace")


def test_text_is_cut_at_64_kib() -> None:
    assert json.loads(json_value(b"x" * 100_000)) == "x" * 65_536
