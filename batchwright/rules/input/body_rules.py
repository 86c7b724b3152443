"""Rules for the body of a request: the requirements of its endpoint."""

import re
from collections.abc import Callable
from operator import attrgetter
from typing import NamedTuple

from msgspec import UNSET

from batchwright.contracts.terms import Endpoint
from batchwright.rules.input.line_parser import (
    FastBody,
    PromptFields,
    RawValue,
    RequestBody,
    read_count,
    read_text,
)
from batchwright.rules.input.validation_errors import ValidationCode

_KINDS = {
    ord("{"): "an object",
    ord("["): "an array",
    ord('"'): "a string",
    ord("t"): "a boolean",
    ord("f"): "a boolean",
    ord("n"): "null",
}
_FRACTION = re.compile(rb"[.eE]")
_ARRAY = ("an array",)
_TEXT = ("a string",)
_BOTH = ("a string", "an array")
_BEGIN: dict[tuple[str, ...], bytes] = {(): b"", _ARRAY: b"[", _TEXT: b'"', _BOTH: b'["'}
_ELEMENT = re.compile(
    rb"""[\s,]*+(?:"[^"\\]*+(?:\\.[^"\\]*+)*+"|\[[^\[\]]*+\]|[^\s,\[\]"]++)""",
    re.DOTALL,
)


class _EndpointRule(NamedTuple):
    name: str  # name in messages
    model: bool = False  # True if the body must name a model
    field: str | None = None  # the required field
    kinds: tuple[str, ...] = ()
    needs_output: bool = False  # True if `max_tokens` may not be 0


_RULES = {
    Endpoint.RESPONSES: _EndpointRule("Responses"),
    Endpoint.CHAT_COMPLETIONS: _EndpointRule("Chat Completions", True, "messages", _ARRAY),
    Endpoint.EMBEDDINGS: _EndpointRule("Embeddings", True, "input", _BOTH),
    Endpoint.COMPLETIONS: _EndpointRule("Completions", True, "prompt", _BOTH),
    Endpoint.MODERATIONS: _EndpointRule("Moderations", False, "input", _BOTH),
    Endpoint.IMAGES_GENERATIONS: _EndpointRule("Images", False, "prompt", _TEXT),
    Endpoint.IMAGES_EDITS: _EndpointRule("Images", False, "prompt", _TEXT),
    Endpoint.VIDEOS: _EndpointRule("Videos", False, "prompt", _TEXT),
    Endpoint.MESSAGES: _EndpointRule("Messages", True, "messages", _ARRAY, needs_output=True),
    Endpoint.SCORE: _EndpointRule("Score", True),
    Endpoint.RERANK: _EndpointRule("Rerank", True),
}


class BodyProblem(NamedTuple):
    """One fault in a request's body, for a validation error. `param` is the name of the faulty field."""

    code: ValidationCode
    param: str
    message: str


def kind_of(value: RawValue) -> str:
    """Return the JSON type of a value in words for messages, with an article, such as "an array"."""
    if value is UNSET:
        return "nothing"
    data = memoryview(value)
    return _KINDS.get(data[0]) or ("a number" if _FRACTION.search(data) else "an integer")


def body_problems(endpoint: Endpoint, body: RequestBody) -> list[BodyProblem]:
    """Return all faults of a body for this endpoint; empty if the body is valid.

    Three fields are checked: `model`, `stream`, and the field that the endpoint requires, such as `messages`.
    At the endpoint `/v1/messages`, `max_tokens` must not be 0. The backend checks all other fields.
    """
    rule = _RULES[endpoint]
    found = (
        _model_problem(rule, body.model),
        _field_problem(rule, body),
        _stream_problem(rule, body.stream),
        _max_tokens_problem(rule, body.max_tokens),
    )
    return [problem for problem in found if problem is not None]


def meets_requirements_of(endpoint: Endpoint) -> Callable[[FastBody], bool]:
    """Return a function that quickly checks bodies for this endpoint.

    If the function returns True, the body is valid. If the function returns False, the body can still be
    valid. Then the slower `body_problems` must decide.
    """
    rule = _RULES[endpoint]
    needs_model, needs_output, begin = rule.model, rule.needs_output, _BEGIN[rule.kinds]
    field = attrgetter(rule.field) if rule.field else None

    def has_it(body: FastBody) -> bool:
        if body.stream or (needs_model and body.model is UNSET):
            return False
        if needs_output and body.max_tokens == 0:
            return False
        if field is None:
            return True
        value: RawValue = field(body)
        return value is not UNSET and memoryview(value)[0] in begin

    return has_it


def prompt_field(endpoint: Endpoint) -> str:
    """Return the name of the field that usually contains the prompt in bodies for this endpoint."""
    return _RULES[endpoint].field or "input"


def _model_problem(rule: _EndpointRule, model: RawValue) -> BodyProblem | None:
    kind = kind_of(model)
    if kind == "a string" and read_text(model):
        return None
    if kind in ("nothing", "null", "a string"):
        return _required("model") if rule.model else None
    return BodyProblem(
        ValidationCode.INVALID_REQUEST, "body.model", f"Model parameter must be a string, but it is {kind}."
    )


def _field_problem(rule: _EndpointRule, body: RequestBody) -> BodyProblem | None:
    if rule.field is None:
        return None
    kind = kind_of(_field(rule.field, body))
    if kind in rule.kinds:
        return None
    if kind in ("nothing", "null"):
        return _required(rule.field)
    message = f"{rule.field.capitalize()} parameter must be {' or '.join(rule.kinds)}, but it is {kind}."
    return BodyProblem(ValidationCode.INVALID_REQUEST, f"body.{rule.field}", message)


def _stream_problem(rule: _EndpointRule, stream: RawValue) -> BodyProblem | None:
    if stream is UNSET or bytes(stream) in (b"false", b"null"):
        return None
    message = f"{rule.name}: Streaming is not supported in the Batch API."
    return BodyProblem(ValidationCode.STREAMING_UNSUPPORTED, "body.stream", message)


def _max_tokens_problem(rule: _EndpointRule, limit: RawValue) -> BodyProblem | None:
    if not rule.needs_output or read_count(limit) != 0:
        return None
    message = f"{rule.name}: max_tokens must be at least 1 in the Batch API."
    return BodyProblem(ValidationCode.INVALID_REQUEST, "body.max_tokens", message)


def _field(name: str, body: PromptFields) -> RawValue:
    match name:
        case "messages":
            return body.messages
        case "input":
            return body.input
        case _:
            return body.prompt


def _required(field: str) -> BodyProblem:
    return BodyProblem(
        ValidationCode.INVALID_REQUEST, f"body.{field}", f"{field.capitalize()} parameter is required."
    )


def count_inputs(value: RawValue, max_count: int) -> int:
    """Return the number of texts or token arrays in the field `input` of an embeddings request.

    A string or a single array of tokens counts as one. To save time, the result is never more than
    `max_count` + 1.
    """
    if value is UNSET or kind_of(value) != "an array":
        return 1
    data = memoryview(value)[1:-1]
    first = _ELEMENT.match(data)
    if first is None or first[0].lstrip(b" \t\r\n,")[:1] not in (b'"', b"["):
        return 1
    count, found = 0, first
    while found is not None and count <= max_count:
        count += 1
        found = _ELEMENT.match(data, found.end())
    return count
