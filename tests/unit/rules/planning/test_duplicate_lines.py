"""Lines with equal requests, and how a duplicate gets the response of its original."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchwright.contracts.errors import LineCode
from batchwright.rules.ids import request_id
from batchwright.rules.planning.duplicate_lines import (
    Duplicate,
    DuplicatesDamaged,
    canonical_body,
    copy_result,
    decode_duplicates,
    encode_duplicates,
)
from batchwright.rules.results.output_lines import ResultDamaged, error_line, result_line
from tests.unit.rules.texts import texts

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | texts(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts(max_size=3), inner, max_size=3),
    max_leaves=10,
)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b'{"a": 1, "b": [2]}', b'{"b":[2],"a":1}'),
        (b'{"a": {"x": 1, "y": 2}}', b'{"a": {"y": 2, "x": 1}}'),
        (b'{"a": "\\u00e9"}', '{"a": "é"}'.encode()),
        (b'{"a": 123456789012345678901234567890}', b'{"a":123456789012345678901234567890}'),
        (b'{"a": "\\ud83d\\ude00"}', '{"a": "😀"}'.encode()),
    ],
)
def test_the_order_of_keys_and_the_space_between_tokens_do_not_count(one: bytes, other: bytes) -> None:
    assert canonical_body(one) == canonical_body(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b'{"a": 1}', b'{"a": 1.0}'),
        (b'{"a": 1}', b'{"a": "1"}'),
        (b'{"a": 1}', b'{"a": true}'),
        (b'{"a": null}', b"{}"),
        (b'{"a": [1, 2]}', b'{"a": [2, 1]}'),
        (b'{"a": []}', b'{"a": {}}'),
        (b'{"a": [["b", 1]]}', b'{"a": {"b": 1}}'),
        (b'{"a": 1, "a": 2}', b'{"a": 2, "a": 1}'),
        (b'{"a": "x "}', b'{"a": "x"}'),
        (b'{"a": "None"}', b'{"a": null}'),
        (b'{"a": 123456789012345678901}', b'{"a": 123456789012345678902}'),
        (b'{"a": 0.10000000000000000001}', b'{"a": 0.1}'),
    ],
)
def test_differences_that_may_change_the_meaning_count(one: bytes, other: bytes) -> None:
    assert canonical_body(one) != canonical_body(other)


@given(VALUES, VALUES)
def test_bodies_with_the_same_meaning_are_equal(one: object, other: object) -> None:
    same = canonical_body(json.dumps(one).encode()) == canonical_body(json.dumps(other, indent=1).encode())
    assert same == (json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True))


def test_deeply_nested_bodies_are_compared_byte_by_byte() -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    assert canonical_body(deep) == deep


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
def test_a_line_that_is_not_a_result_is_refused(line: bytes) -> None:
    with pytest.raises(ResultDamaged):
        copy_result(line, request_id("batch_1", 0), "a")


def test_a_result_whose_custom_id_never_ends_is_refused() -> None:
    line = error_line(request_id("batch_1", 0), "a", LineCode.REQUEST_TIMEOUT, "")
    with pytest.raises(ResultDamaged):
        copy_result(line[: line.index(b'"a"') + 2], request_id("batch_1", 1), "b")


def test_a_list_of_duplicates_is_read_as_it_was_written() -> None:
    found = [Duplicate(2**40, 0, 'a"\n'), Duplicate(2**40 + 1, 5, "é")]
    assert list(decode_duplicates(encode_duplicates(found).splitlines())) == found
    with pytest.raises(DuplicatesDamaged):
        list(decode_duplicates([b"[1]"]))
