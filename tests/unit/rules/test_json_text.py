"""Text and JSON in the form that PostgreSQL can store."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from batchwright.rules.ids import is_model_name
from batchwright.rules.json_text import storable, storable_json
from tests.unit.rules.texts import texts


@given(text=texts() | st.text(alphabet="\\\x00u0"))
@example("\\u0000")
@example("\\\x00\\\\u0000")
def test_json_is_stored_as_its_strings_are(text: str) -> None:
    assert storable(json.loads(storable_json(json.dumps([text])))[0]) == storable(text)
    assert "\x00" not in json.loads(storable_json(json.dumps([text])))[0]


@pytest.mark.parametrize(
    ("name", "is_one"),
    [("m" * 256, True), ("org/model:1 b", True), ("", False), ("m" * 257, False), ("a\ufffd", False)],
)
def test_a_name_of_a_model_is_short_printable_and_as_it_was_sent(name: str, is_one: bool) -> None:
    assert is_model_name(name) == is_one
