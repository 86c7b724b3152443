"""The fast parser of lines agrees with the strict parser."""

import json

from hypothesis import example, given
from hypothesis import strategies as st

from batchwright.contracts.terms import Endpoint, Profile, ValidationError
from batchwright.rules.input.line_parser import FastLine, fast_parse
from batchwright.rules.input.line_rules import AcceptedRequest, InputLimits, LineValidator
from batchwright.rules.input.line_splitter import InputLine
from batchwright.rules.input.validation_errors import ValidationErrors
from batchwright.rules.planning.request_work import estimate_tokens, prompt_bytes, work_units
from batchwright.rules.planning.shared_prefix import prompt_of
from tests.unit.rules.bad_lines import CASES, a_line

LIMITS = InputLimits(one_model=True, max_embedding_inputs=3)
Some = st.SearchStrategy[object]


def one_of(*values: object) -> Some:
    return st.sampled_from(values)


def fields(**values: Some) -> st.SearchStrategy[dict[str, object]]:
    """Return a strategy that generates objects with any subset of these fields."""
    return st.fixed_dictionaries({}, optional=values)


URL = "the batch's"
_USUAL: Some = st.lists(
    fields(role=one_of("system", "developer", "user", "tool"), content=one_of("hi", "ä\n", "", 5))
)
_PROMPTS: Some = _USUAL | one_of(
    "text", "", [1, 2], ["a", "b"], {}, None, 7, [{"content": [{"type": "text"}]}]
)
_COUNTS = one_of(0, 1, 700, 2**32 - 1, 2**32, -1, 1.5, "many", None)
_BODY = st.tuples(
    one_of("m", "m", "m", "n", "", None, 5),
    _USUAL,
    fields(
        input=_PROMPTS, prompt=_PROMPTS, instructions=one_of("x", 5), tools=one_of([{"type": "function"}])
    ),
    fields(messages=_PROMPTS, stream=one_of(False, None, True, "no", 0)),
    fields(max_tokens=_COUNTS, max_completion_tokens=_COUNTS, max_output_tokens=_COUNTS),
).map(lambda drawn: {"model": drawn[0], "messages": drawn[1], **drawn[2], **drawn[3], **drawn[4]})
_LINE = st.tuples(
    one_of("a", "b", "c", "d", "e", "", 5, None),
    _BODY | one_of(None, [], "x"),
    fields(method=one_of("POST", "POST", "POST", "GET", None), url=one_of(URL, URL, URL, "/v1/x", None)),
).map(lambda drawn: {"custom_id": drawn[0], "body": drawn[1], **drawn[2]})
_TEXT = st.tuples(_LINE, st.booleans()).map(
    lambda drawn: json.dumps(drawn[0], ensure_ascii=drawn[1]).encode()
)
_BYTES = _TEXT | st.sampled_from([b"{", b"[]", b'{"custom_id":"\xff"}', *(case.line for case in CASES)])
Said = tuple[str, str | None, bytes, bytes, bytes, int, int]


def test_an_ordinary_line_takes_the_fast_parser() -> None:
    [line] = fast_parse([InputLine(1, 0, 9, a_line())])
    assert isinstance(line, FastLine)
    assert (line.custom_id, line.body.model) == ("a", "m")


@given(st.lists(_BYTES, max_size=6), st.sampled_from(Endpoint), st.sampled_from(Profile))
@example([a_line(), a_line()], Endpoint.CHAT_COMPLETIONS, Profile.STRICT)
def test_both_parsers_give_the_same_result(lines: list[bytes], endpoint: Endpoint, profile: Profile) -> None:
    assert parsed_with(lines, endpoint, profile, usual=True) == parsed_with(
        lines, endpoint, profile, usual=False
    )


def parsed_with(
    lines: list[bytes], endpoint: Endpoint, profile: Profile, *, usual: bool
) -> tuple[list[Said | None], list[ValidationError]]:
    """Return the data of each line (None if it is rejected), and the errors of the rejected lines.

    Args:
        usual: True to use the fast parser.
    """
    lines = [line.replace(URL.encode(), endpoint.encode()) for line in lines]
    checker = LineValidator(endpoint, profile, LIMITS, errors := ValidationErrors())
    known: list[Said | None] = []
    numbered = [InputLine(number, 0, len(line) + 1, line) for number, line in enumerate(lines, 1)]
    for line, read in zip(numbered, fast_parse(numbered), strict=True):
        request = checker.check(line, read if usual else None)
        if request is None:
            known.append(None)
            continue
        assert isinstance(request, AcceptedRequest)
        body, prompt_size = request.body, prompt_bytes(request.body)
        prompt, costs = prompt_of(body), (work_units(body, prompt_size), estimate_tokens(body, prompt_size))
        texts = prompt.shared, prompt.rest, b"\x00".join(prompt.system)
        known.append((request.custom_id, request.model, *texts, *costs))
    return known, errors.as_list()


@given(st.lists(_TEXT, min_size=1, max_size=6), st.integers(0, 40))
def test_the_prefix_of_a_prompt_is_the_start_of_the_whole_prompt(lines: list[bytes], most: int) -> None:
    for line in fast_parse([InputLine(1, 0, 9, line) for line in lines]):
        if line is not None:
            assert prompt_of(line.body, most).rest[:most] == prompt_of(line.body).rest[:most]
            assert prompt_of(line.body, most).shared == prompt_of(line.body).shared
