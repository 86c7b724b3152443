"""Lines and responses with half of a surrogate pair are read as Python's standard library reads them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchwright.contracts.model_registry.backend_job_config import JobConfig
from batchwright.contracts.terms import Endpoint, Profile
from batchwright.rules.backends import backend_job_reports
from batchwright.rules.backends.microbatch import EmbeddingsAdapter
from batchwright.rules.backends.response_checks import find_embeddings_problem
from batchwright.rules.input.input_validator import InputValidator
from batchwright.rules.input.line_parser import parse_line, read_fields, read_request, reread_body
from batchwright.rules.input.line_rules import InputLimits
from batchwright.rules.planning.duplicate_list import (
    Duplicate,
    DuplicatesDamaged,
    decode_duplicates,
    encode_duplicates,
)
from batchwright.rules.results.dead_letters import error_summary
from tests.unit.rules.bad_lines import a_line

LINE = rb'{"x":%b,"custom_id":%b,"\udfff":1,"body":%b}'
_ESCAPES = st.sampled_from(
    [r"\ud800", r"\uDFFF", r"\ud83d\ude00", r"\\ud800", r"\ufffd", r"\"", "a", "\U0001f600"]
)
_STRINGS = st.lists(_ESCAPES, max_size=5).map(lambda parts: f'"{"".join(parts)}"'.encode())
_BODIES = st.tuples(_STRINGS, _STRINGS).map(lambda two: b'{"model":%b, "messages":[%b]}' % two)


def codes(*lines: bytes) -> list[tuple[str, str | None]]:
    validation = InputValidator(Endpoint.CHAT_COMPLETIONS, Profile.RELAXED, InputLimits())
    for line in lines:
        list(validation.feed(line + b"\n"))
    list(validation.finish())
    return [(error.code, error.param) for error in validation.errors.as_list()]


@given(other=_STRINGS | _BODIES, custom_id=_STRINGS, body=_BODIES)
def test_custom_id_and_body_are_exactly_those_of_the_line(
    other: bytes, custom_id: bytes, body: bytes
) -> None:
    line = LINE % (other, custom_id, body)
    assert read_request(line) == (json.loads(custom_id), body)
    assert parse_line(line)[::3] == (json.loads(custom_id), body)
    assert read_fields(line).url == read_fields(b"{}").url
    assert bytes(memoryview(reread_body(line).messages)).startswith(b"[")  # pyright: ignore[reportArgumentType]


@given(st.lists(_STRINGS, max_size=8))
def test_the_same_custom_ids_are_found_as_the_standard_library_compares_them(names: list[bytes]) -> None:
    lines = [a_line(custom_id="NAME").replace(b'"NAME"', name) for name in names]
    values = [json.loads(name) for name in names]
    empty = sum(not value for value in values)
    found = codes(*lines)
    assert found.count(("duplicate_custom_id", "custom_id")) == len(values) - empty - len({*values} - {""})
    assert found.count(("invalid_type", "custom_id")) == empty


def test_keys_of_a_line_with_lone_surrogates_are_checked() -> None:
    line = a_line().replace(b'"messages"', rb'"x":"\ud800","Stream":true,"messages"')
    assert codes(line) == [("duplicate_parameter", "body.stream")]


@given(_STRINGS)
def test_duplicates_keep_their_custom_ids(name: bytes) -> None:
    one = Duplicate(1, 2, json.loads(name))
    assert list(decode_duplicates(encode_duplicates([one]).splitlines())) == [one]


@pytest.mark.parametrize("line", [rb'[1,2,"\ud8"]', rb'[1,"\ud800"]', rb'["\ud800",1,2]', rb'{"a":"\ud800"}'])
def test_other_bytes_are_no_duplicate(line: bytes) -> None:
    with pytest.raises(DuplicatesDamaged):
        list(decode_duplicates([line]))


def test_the_result_of_a_job_stays_as_it_is_written() -> None:
    result = rb'{"text":"\ud800", "n":1.0e5}'
    body = rb'{"status":"done","job_id":"7","\udfff":0,"result":%b}' % result
    report = backend_job_reports.parse_job_report(body, JobConfig())
    assert (report.state, report.job_id, report.result) == (backend_job_reports.JobState.DONE, "7", result)
    inner = backend_job_reports.parse_job_report(
        rb'{"status":"done","out":{"a":%b}}' % result, JobConfig(result_field="out.a")
    )
    assert inner.result == result


def test_the_error_of_a_job_is_read() -> None:
    report = backend_job_reports.parse_job_report(
        rb'{"status":"failed","job_id":"7","error":{"message":"no \ud800"}}', JobConfig()
    )
    assert (report.state, report.error) == (backend_job_reports.JobState.FAILED, "no \ufffd")


def test_an_answer_that_embeddings_share_is_divided() -> None:
    adapter = EmbeddingsAdapter()
    parts = [part for text in (b"a", b"b") if (part := adapter.part(b'{"model":"m","input":"%b"}' % text))]
    items = b",".join(b'{"index":%d,"embedding":[%d]}' % (place, place) for place in (1, 0))
    results = adapter.split(rb'{"model":"\ud800","data":[%b]}' % items, parts)
    assert [json.loads(result.body)["data"][0]["embedding"] for result in results] == [[0], [1]]


def test_a_line_with_lone_surrogates_shares_no_request() -> None:
    assert EmbeddingsAdapter().part(rb'{"model":"m","input":"\ud800"}') is None


def test_the_number_of_embeddings_is_checked() -> None:
    request, answer = rb'{"input":["\ud800","b"]}', rb'{"model":"\ud800","data":[{"index":0}]}'
    assert "1 embeddings for 2 inputs" in find_embeddings_problem(request, answer)


def test_an_error_is_quoted() -> None:
    assert error_summary(400, rb'{"error":{"message":"no \ud800"}}') == "no \ufffd"
