"""Another model's name in a body: every other byte stays."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchwright.rules.renaming import with_model, with_model_at_least
from tests.unit.texts import texts

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | texts(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts(max_size=6), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("body", "renamed"),
    [
        (b'{"model":"m","n":1.0}', b'{"model":"new","n":1.0}'),
        (b' {\n"n" : 1e3, "model" : "m" }\n', b' {\n"n" : 1e3, "model" : "new" }\n'),
        (b'{"model":"m","model":"m"}', b'{"model":"new","model":"new"}'),
        (b'{"mod\\u0065l":"m"}', b'{"mod\\u0065l":"new"}'),
        (b'{"model":null,"n":null}', b'{"model":"new","n":null}'),
        (b'{"model":"quo\\"te}"}', b'{"model":"new"}'),
        (b'{"a":{"model":"m"},"model":"m"}', b'{"a":{"model":"m"},"model":"new"}'),
        (b'{"b":["model",{"model":"m"}],"model":"m"}', b'{"b":["model",{"model":"m"}],"model":"new"}'),
        (b'{"a":"model","model":"m"}', b'{"a":"model","model":"new"}'),
        (b'{"b":"\\"model\\":\\"m\\"","model":"m"}', b'{"b":"\\"model\\":\\"m\\"","model":"new"}'),
        (b'{"\\xff\xff":"m"}', b'{"model": "new", "\\xff\xff":"m"}'),
        (b'{"n":1}', b'{"model": "new", "n":1}'),
        (b"{ }", b'{"model": "new" }'),
        (b'["model","m"]', b'["model","m"]'),
        (b'"model"', b'"model"'),
    ],
)
def test_only_the_name_at_the_top_changes(body: bytes, renamed: bytes) -> None:
    assert with_model(body, "new") == renamed


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (b'{"model":"m"}', b'{"model":"m"}'),
        (b'{"a":{"model":"m"}}', b'{"model": "new", "a":{"model":"m"}}'),
        (b"[]", b"[]"),
    ],
)
def test_a_name_is_added_only_where_none_stands_at_the_top(body: bytes, named: bytes) -> None:
    assert with_model_at_least(body, "new") == named


def test_a_name_is_written_as_json() -> None:
    assert json.loads(with_model(b'{"model":"m"}', 'a"\\ü\n')) == {"model": 'a"\\ü\n'}


@given(
    before=st.dictionaries(texts(max_size=6), VALUES, max_size=4),
    has_name=st.booleans(),
    ascii_only=st.booleans(),
)
def test_whatever_the_body_all_else_means_the_same(
    before: dict[str, object], has_name: bool, ascii_only: bool
) -> None:
    before.pop("model", None)
    body = {**before, **({"model": "m"} if has_name else {})}
    renamed = with_model(json.dumps(body, ensure_ascii=ascii_only).encode(errors="surrogatepass"), "new")
    assert json.loads(renamed) == {**before, "model": "new"}
