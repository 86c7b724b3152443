"""Lines with equal requests."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchwright.rules.planning.equal_requests import canonical_body
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
