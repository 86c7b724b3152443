"""Arbitrary bytes as input of the line checker: no exception, and each line is accepted or has an error."""

import json

from hypothesis import example, given
from hypothesis import strategies as st

from batchwright.contracts.terms import Endpoint, Profile
from batchwright.rules.input.input_validator import InputValidator
from batchwright.rules.input.line_parser import parse_line
from batchwright.rules.input.line_rules import InputLimits
from batchwright.rules.input.validation_errors import ValidationCode
from tests.unit.rules.bad_lines import a_line
from tests.unit.rules.texts import texts

LIMITS = InputLimits(max_lines=50, max_line_bytes=2000)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts(max_size=9), inner, max_size=4),
    max_leaves=12,
)
_KEYS = st.sampled_from(
    ["custom_id", "method", "url", "body", "model", "messages", "input", "prompt", "stream"]
)
_ALMOST = st.dictionaries(_KEYS, _JSON | st.dictionaries(_KEYS, _JSON)).map(
    lambda value: json.dumps(value).encode()
)
_CUT = st.tuples(st.just(a_line()), st.integers(0, 200)).map(lambda cut: cut[0][: cut[1]])
_SPOILT = st.tuples(st.binary(max_size=9), st.integers(0, 150)).map(
    lambda spoilt: a_line()[: spoilt[1]] + spoilt[0] + a_line()[spoilt[1] :]
)
_INPUT = st.lists(st.binary() | _ALMOST | _CUT | _SPOILT | st.just(a_line()), max_size=8).map(b"\n".join)


@given(
    data=_INPUT,
    size=st.integers(1, 4000),
    endpoint=st.sampled_from(Endpoint),
    profile=st.sampled_from(Profile),
)
@example(data=b"\xef\xbb\xbf", size=1, endpoint=Endpoint.RESPONSES, profile=Profile.STRICT)
@example(data=b"\x00\n" * 60, size=7, endpoint=Endpoint.RESPONSES, profile=Profile.STRICT)
def test_every_line_is_accepted_or_has_an_error_with_its_number(
    data: bytes, size: int, endpoint: Endpoint, profile: Profile
) -> None:
    validation = InputValidator(endpoint, profile, LIMITS)
    accepted: dict[int, bytes] = {}
    for at in range(0, len(data), size):
        accepted |= {line.number: line.data or b"" for line, _ in validation.feed(data[at : at + size])}
    accepted |= {line.number: line.data or b"" for line, _ in validation.finish()}
    errors = validation.errors.as_list()
    blamed = {error.line for error in errors if error.line is not None}
    assert {error.code for error in errors} <= set(ValidationCode)
    assert blamed.isdisjoint(accepted)
    if not validation.is_full:
        assert blamed | set(accepted) == lines_of(data)
    for line in accepted.values():
        parse_line(line)  # what is accepted can always be read again


def lines_of(data: bytes) -> set[int]:
    """Return the numbers of all lines that are not blank."""
    lines = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    return {number for number, line in enumerate(lines, 1) if line and not line.isspace()}
