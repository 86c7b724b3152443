"""The model's name and the priority in the body of a request are replaced. All other bytes stay the same."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchwright.rules.backends import body_rewriting
from batchwright.rules.backends.body_rewriting import with_default_model, with_model, with_priority
from tests.unit.rules.texts import texts

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
def test_only_the_top_level_model_name_changes(body: bytes, renamed: bytes) -> None:
    assert with_model(body, "new") == renamed


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (b'{"model":"m"}', b'{"model":"m"}'),
        (b'{"a":{"model":"m"}}', b'{"model": "new", "a":{"model":"m"}}'),
        (b'{"model":null,"n":1}', b'{"model":"new","n":1}'),
        (b'{"model":null,"model":"m"}', b'{"model":null,"model":"m"}'),
        (b"[]", b"[]"),
    ],
)
def test_a_model_name_is_added_only_if_the_top_level_has_none(body: bytes, named: bytes) -> None:
    assert with_default_model(body, "new") == named


def test_a_name_is_written_as_json() -> None:
    assert json.loads(with_model(b'{"model":"m"}', 'a"\\ü\n')) == {"model": 'a"\\ü\n'}


@given(
    before=st.dictionaries(texts(max_size=6), VALUES, max_size=4),
    has_name=st.booleans(),
    ascii_only=st.booleans(),
)
def test_the_rest_of_any_body_is_unchanged(
    before: dict[str, object], has_name: bool, ascii_only: bool
) -> None:
    before.pop("model", None)
    body = {**before, **({"model": "m"} if has_name else {})}
    renamed = with_model(json.dumps(body, ensure_ascii=ascii_only).encode(errors="surrogatepass"), "new")
    assert json.loads(renamed) == {**before, "model": "new"}


@pytest.mark.parametrize(
    ("body", "sent"),
    [
        (b'{"n":1.0}', b'{"priority": 7, "n":1.0}'),
        (b" {}\n", b' {"priority": 7}\n'),
        (b'{"n":1,"priority":-5}', b'{"n":1,"priority":7}'),
        (b'{"priority" : {"a":[1]}, "n":1}', b'{"priority" : 7, "n":1}'),
        (b'{"priority":[-5],"priority":null,"priority":1e3}', b'{"priority":7,"priority":7,"priority":7}'),
        (b'{"pri\\u006Frity":-5}', b'{"pri\\u006Frity":7}'),
        (b'{"\\u0070riority":-5}', b'{"\\u0070riority":7}'),
        (b'{"a":{"priority":-5}}', b'{"priority": 7, "a":{"priority":-5}}'),
        (b'{"a":"priority","b":["priority",2]}', b'{"priority": 7, "a":"priority","b":["priority",2]}'),
        (b'{"a":"\\"priority\\":2","b":"\\u0070"}', b'{"priority": 7, "a":"\\"priority\\":2","b":"\\u0070"}'),
        (b'["priority",2]', b'["priority",2]'),
        (b"null", b"null"),
    ],
)
def test_only_the_top_level_priority_changes(body: bytes, sent: bytes) -> None:
    assert with_priority(body, 7) == sent


def test_a_large_body_without_a_priority_is_not_searched_for_members(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(body_rewriting, "object_members")
    body = b'{"model":"m","input":["%b"]}' % (b"x" * 1_000_000)
    assert with_priority(body, -3) == b'{"priority": -3, ' + body[1:]


@given(
    before=st.dictionaries(texts(max_size=6) | st.just("priority"), VALUES, max_size=4),
    ascii_only=st.booleans(),
)
def test_the_priority_is_the_only_member_that_changes(before: dict[str, object], ascii_only: bool) -> None:
    body = json.dumps(before, ensure_ascii=ascii_only).encode(errors="surrogatepass")
    assert json.loads(with_priority(body, 7)) == {**before, "priority": 7}
