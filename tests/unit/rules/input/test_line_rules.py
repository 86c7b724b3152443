"""Validation errors of an input, with the documented codes and messages."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchwright.contracts.terms import Endpoint, Profile, ValidationError
from batchwright.rules.input.input_validator import InputValidator, ValidationReport, validate
from batchwright.rules.input.line_parser import parse_line
from batchwright.rules.input.line_rules import InputLimits
from batchwright.rules.input.validation_errors import MAX_LISTED, ValidationCode
from tests.unit.rules.bad_lines import CASES, CHAT, EMBEDDINGS, Case, a_line, with_body
from tests.unit.rules.texts import texts

DEFAULTS = InputLimits()


def report(
    *lines: bytes,
    endpoint: Endpoint = CHAT,
    profile: Profile = Profile.RELAXED,
    limits: InputLimits = DEFAULTS,
) -> ValidationReport:
    return validate([b"\n".join(lines)], endpoint, limits, profile)


def errors(
    line: bytes, endpoint: Endpoint = CHAT, profile: Profile = Profile.RELAXED
) -> list[ValidationError]:
    return report(line, endpoint=endpoint, profile=profile).errors


@pytest.mark.parametrize("case", CASES, ids=[case.title for case in CASES])
def test_an_error_names_code_param_line_and_message(case: Case) -> None:
    found = report(b"", case.line, endpoint=case.endpoint).errors
    assert found == [ValidationError(code=case.code, message=case.message, param=case.param, line=2)]


def test_a_good_line_is_accepted() -> None:
    assert report(a_line()) == ValidationReport(lines=1, errors=[], error_count=0, models={"m": 1})


@pytest.mark.parametrize(
    "body",
    [
        {"model": "m", "messages": [], "stream": False, "tools": [{"type": "mcp", "server_label": "x"}]},
        {"model": "m", "messages": [], "stream": None, "response_format": {"type": "json_schema"}},
        {
            "model": "m",
            "messages": [{"role": "developer", "content": [{"type": "text", "text": "x"}]}],
            "x": 1,
        },
    ],
)
def test_fields_that_the_backend_validates_are_not_checked_here(body: object) -> None:
    assert errors(with_body(body)) == []


NEEDED: dict[Endpoint, list[str]] = {
    Endpoint.RESPONSES: [],
    Endpoint.CHAT_COMPLETIONS: ["body.model", "body.messages"],
    Endpoint.EMBEDDINGS: ["body.model", "body.input"],
    Endpoint.COMPLETIONS: ["body.model", "body.prompt"],
    Endpoint.MODERATIONS: ["body.input"],
    Endpoint.IMAGES_GENERATIONS: ["body.prompt"],
    Endpoint.IMAGES_EDITS: ["body.prompt"],
    Endpoint.VIDEOS: ["body.prompt"],
    Endpoint.MESSAGES: ["body.model", "body.messages"],
    Endpoint.SCORE: ["body.model"],
    Endpoint.RERANK: ["body.model"],
}


@pytest.mark.parametrize("endpoint", Endpoint)
def test_an_endpoint_requires_its_own_fields(endpoint: Endpoint) -> None:
    assert [error.param for error in errors(with_body({}, endpoint), endpoint)] == NEEDED[endpoint]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("/chat/completions", "'/chat/completions'"),
        ("a\x00b", r"'a\x00b'"),
        ("x" * 300, f"'{'x' * 100}'"),
        (7, "an integer"),
    ],
)
def test_a_wrong_url_is_named_with_the_endpoint(url: str | int, shown: str) -> None:
    [error] = errors(a_line(url=url))
    assert error.message == (
        f"The URL provided for this request, {shown}, does not match the batch endpoint, "
        "'/v1/chat/completions'."
    )


def test_a_line_without_method_and_url_is_filled_in_relaxed_and_refused_strict() -> None:
    line = a_line(method=None, url=None)
    assert errors(line) == []
    assert [error.param for error in errors(line, profile=Profile.STRICT)] == ["method", "url"]


def test_every_error_of_a_line_is_reported() -> None:
    params = [error.param for error in errors(a_line(custom_id=None, method="PUT", url="/x", body=None))]
    assert params == ["custom_id", "method", "url", "body"]


def test_a_line_with_a_repeated_key_is_refused() -> None:
    line = b'{"custom_id":1,' + a_line()[1:]
    [error] = errors(line)
    assert (error.code, error.param) == ("duplicate_parameter", "custom_id")


def test_the_second_use_of_a_custom_id_is_the_error() -> None:
    found = report(a_line(), a_line(custom_id="b"), a_line().replace(b'"a"', rb'"\u0061"')).errors
    assert [(error.code, error.param, error.line) for error in found] == [
        ("duplicate_custom_id", "custom_id", 3)
    ]


def test_one_model_is_a_policy() -> None:
    lines = (a_line(), a_line(custom_id="b", body={"model": "n", "messages": []}))
    assert report(*lines).models == {"m": 1, "n": 1}
    found = report(*lines, limits=InputLimits(one_model=True)).errors
    message = "The model 'n' is not that of the batch's first request, 'm'."
    assert found == [
        ValidationError(code="mismatched_model", message=message, param="body.model", line=2),
    ]


@pytest.mark.parametrize(
    ("value", "inputs"),
    [
        ("text", 1), ([1, 2, 3], 1), ([], 1), (["a", "b]", '","'], 3), ([[1, 2], [3]], 2),
        ([" ", "\\", "\\\"", ","], 4),
    ],
)  # fmt: skip
def test_embedding_inputs_are_counted(value: object, inputs: int) -> None:
    line = with_body({"model": "m", "input": value}, EMBEDDINGS)
    fitting, short = InputLimits(max_embedding_inputs=inputs), InputLimits(max_embedding_inputs=inputs - 1)
    assert report(line, endpoint=EMBEDDINGS, limits=fitting).valid
    found = report(line, endpoint=EMBEDDINGS, limits=short).errors
    assert [(error.code, error.param) for error in found] == [("too_many_embedding_inputs", "body.input")]


def test_the_line_that_passes_the_sum_of_embedding_inputs_is_named() -> None:
    bodies = [a_line(custom_id=str(n), url="/v1/embeddings", body={"model": "m", "input": ["x", "y"]})
              for n in range(5)]  # fmt: skip
    found = report(*bodies, endpoint=EMBEDDINGS, limits=InputLimits(max_embedding_inputs=5)).errors
    assert [(error.code, error.line) for error in found] == [("too_many_embedding_inputs", 3)]


def test_a_long_line_is_an_error_and_the_next_is_not() -> None:
    limits = InputLimits(max_line_bytes=len(a_line()))
    found = report(a_line(custom_id="too long"), a_line(), limits=limits)
    assert [(error.code, error.line) for error in found.errors] == [("line_too_long", 1)]
    assert found.models == {"m": 1}


def nested(depth: int) -> bytes:
    return with_body({"model": "m", "messages": []}).replace(b"[]", b"[" * depth + b"]" * depth)


def parse_below(line: bytes, frames: int) -> str:
    return parse_below(line, frames - 1) if frames else parse_line(line).custom_id


def test_the_deepest_line_accepted_can_be_read_from_deeper_in_the_stack() -> None:
    deepest = max(depth for depth in range(100, 1_000, 10) if report(nested(depth)).valid)
    assert deepest > 300
    assert parse_below(nested(deepest), 150) == "a"


def test_lines_above_the_limit_are_not_checked() -> None:
    found = report(a_line(), a_line(custom_id="b"), b"{", limits=InputLimits(max_lines=1))
    assert [(error.code, error.line) for error in found.errors] == [("too_many_tasks", None)]


@pytest.mark.parametrize("data", [b"", b"\n", b"\xef\xbb\xbf\r\n \t"])
def test_an_input_of_blank_lines_is_empty(data: bytes) -> None:
    message = "The input file is empty. Please ensure that the batch contains at least one request."
    assert report(data).errors == [ValidationError(code="empty_file", message=message)]


def test_a_long_list_of_errors_says_how_many_there_are() -> None:
    found = report(*[b"{"] * (MAX_LISTED + 5))
    assert found.error_count == MAX_LISTED + 5
    assert [error.line for error in found.errors] == [*range(1, MAX_LISTED), None]
    assert found.errors[-1].message == "The input has 1005 errors; only the first 999 are listed."


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts(max_size=3), inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "custom_id": JSON | texts(max_size=2),
        "method": JSON | st.just("POST"),
        "url": JSON | st.sampled_from([endpoint.value for endpoint in Endpoint]),
        "body": JSON
        | st.fixed_dictionaries(
            {},
            optional={name: JSON | st.lists(texts()) for name in
                      ("model", "messages", "input", "prompt", "stream", "tools", "instructions")},
        ),
    },
)  # fmt: skip


def encoded(value: object) -> bytes:
    return json.dumps(value).encode()


def broken(line: bytes, at: int, more: bytes) -> bytes:
    return line[:at] + more + line[at:]


ENCODED = st.builds(encoded, FIELDS | JSON)
BROKEN = st.builds(broken, ENCODED, st.integers(0, 80), st.binary())


@given(
    st.lists(st.binary() | ENCODED | BROKEN, max_size=6), st.sampled_from(Endpoint), st.sampled_from(Profile)
)
def test_any_bytes_are_accepted_lines_or_errors_of_their_line(
    parts: list[bytes], endpoint: Endpoint, profile: Profile
) -> None:
    data = b"\n".join(parts)
    validation = InputValidator(endpoint, profile, InputLimits())
    accepted = [line for line, _ in [*validation.feed(data), *validation.finish()]]
    numbers = {line.number for line in accepted}
    refused = {error.line for error in validation.errors.as_list() if error.line is not None}
    texts = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    assert numbers | refused == {number for number, text in enumerate(texts, 1) if text.strip()}
    assert not numbers & refused


def test_every_code_of_validation_is_in_the_reference() -> None:
    page = (Path(__file__).parents[4] / "docs/reference/api.md").read_text()
    assert [code for code in ValidationCode if f"`{code}`" not in page] == []
