"""JSON keys that backends may read differently from our checks: repeated keys, or keys in another case."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchwright.contracts.terms import Endpoint, Profile, ValidationError
from batchwright.rules.input.ambiguous_keys import BODY_NAMES, LineTemplates, ambiguous_keys, is_unambiguous
from batchwright.rules.input.input_validator import validate
from batchwright.rules.input.line_parser import fast_parse
from batchwright.rules.input.line_rules import InputLimits
from batchwright.rules.input.line_splitter import InputLine

BODY = b'{"model":"plain","messages":[{"role":"user","content":"hi"}],"max_tokens":9}'
GOOD = b'{"custom_id":"1","method":"POST","url":"/v1/chat/completions","body":' + BODY + b"}"


def errors_of(*lines: bytes) -> list[ValidationError]:
    data = b"\n".join(lines)
    return validate([data], Endpoint.CHAT_COMPLETIONS, InputLimits(), Profile.RELAXED).errors


def others() -> list[bytes]:
    """Return valid lines that are checked before the tested line.

    The checker remembers data about them, which must not hide the error of the tested line.
    """
    return [GOOD.replace(b'"1"', b'"%d"' % number) for number in range(2, 5)]


@pytest.mark.parametrize(
    ("old", "new", "param"),
    [
        (b'"model":"plain"', b'"model":"plain","Model":"big"', "body.model"),
        (b'"model":"plain"', b'"MODEL":"big","model":"plain"', "body.model"),
        (b'"model":"plain"', b'"model":"plain","model":"big"', "body.model"),
        (b'"model":"plain"', rb'"model":"plain","mod\u0065l":"big"', "body.model"),
        (b'"max_tokens":9', b'"max_tokens":9,"model":"big"', "body.model"),
        (b'"max_tokens":9', b'"max_tokens":9,"Stream":true', "body.stream"),
        (b'"max_tokens":9', '"max_tokens":9,"\u017ftream":true'.encode(), "body.stream"),
        (b'"max_tokens":9', b'"stream":false,"stream":false', "body.stream"),
        (b'"max_tokens":9', b'"n":1,"N":2', "body.n"),
        (b'"max_tokens":9', b'"Max_tokens":9', "body.max_tokens"),  # as long as what is remembered
        (b'"max_tokens":9', b'"messages":[]', "body.messages"),
        (b'"method"', b'"Body":{},"method"', "body"),
        (b'"method":"POST"', b'"method":"POST","method":"POST"', "method"),
        (b'"custom_id":"1"', b'"custom_id":"0","custom_id":"1"', "custom_id"),
        (b'"body":', b'"body":{"model":"big"},"body":', "body"),
    ],
)
def test_a_name_twice_or_in_another_case_is_refused_with_its_line(old: bytes, new: bytes, param: str) -> None:
    found = errors_of(*others(), GOOD.replace(old, new))
    assert {(error.code, error.param, error.line) for error in found} == {("duplicate_parameter", param, 4)}


def test_the_keys_before_a_prompt_are_compared_with_the_cached_ones() -> None:
    first = GOOD.replace(b'"body":{', b'"body":{"n":1,')
    other = first.replace(b'"1"', b'"2"').replace(b'"n"', b'"N"')
    assert [(error.param, error.line) for error in errors_of(first, other)] == [("body.n", 2)]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"max_tokens":9', b'"metadata":{"model":"x","Model":"y"}'),
        (b'"hi"', rb'"\"model\": 1, \"Model\": 2"'),
        (b'"max_tokens":9', b'"user":"model","stop":["model"]'),
        (b'"max_tokens":9', b'"extra":1,"Extra":2'),
        (b'"custom_id":"1"', rb'"custom_id":"\"1\""'),
        (b'"model":"plain"', b' "model" : "plain" '),
    ],
)
def test_repeated_keys_in_other_places_and_unused_keys_are_accepted(old: bytes, new: bytes) -> None:
    assert errors_of(*others(), GOOD.replace(old, new)) == []


def test_the_repeated_key_is_named() -> None:
    [error] = errors_of(GOOD.replace(b'"model"', b'"Model"'))[:1]
    assert error.message == (
        "The name 'Model', which may be read as 'model', is ambiguous. Give 'model' once, in lower case."
    )


_NAMES = st.sampled_from(["model", "Model", "messages", "max_tokens", "n", "user", "metadata"])
_VALUES = st.sampled_from([b'"plain"', b"1", b'{"model":"x"}', b"[]", b'"\\""', b'":"'])
_PROMPTS = st.sampled_from([b"[]", b'[{"role":"user","content":"model"}]', b'[{"model":"x"}]', b'"text"'])


@given(lines=st.lists(st.tuples(st.lists(st.tuples(_NAMES, _VALUES), max_size=4), _PROMPTS), min_size=1))
def test_the_cache_of_earlier_lines_changes_no_result(
    lines: list[tuple[list[tuple[str, bytes]], bytes]],
) -> None:
    templates = LineTemplates("messages")
    for members, prompt in lines:
        inner = b",".join([
            *(json.dumps(name).encode() + b":" + value for name, value in members),
            b'"messages":' + prompt,
            b'"user":"u"',
        ])  # fmt: skip
        line = b'{"custom_id":"1","body":{' + inner + b"}}"
        [fast] = fast_parse([InputLine(1, 0, len(line) + 1, line)])
        if fast is not None:
            is_good = not any(ambiguous_keys(b"{" + inner + b"}", BODY_NAMES))
            assert templates.is_unambiguous(line, fast) == is_unambiguous(line) == is_good
