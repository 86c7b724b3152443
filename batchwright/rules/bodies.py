"""What each endpoint asks of a request's body, as far as a batch is refused for it."""

import re
from collections.abc import Callable
from operator import attrgetter
from typing import NamedTuple

from msgspec import UNSET

from batchwright.contracts.openai import Endpoint
from batchwright.rules.findings import Code
from batchwright.rules.lines import Body, Prompting, Value, read_text
from batchwright.rules.usual import UsualBody

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


class _Rule(NamedTuple):
    name: str  # as messages say it
    model: bool = False  # must the body name a model
    field: str | None = None  # the field that must be there
    kinds: tuple[str, ...] = ()


_RULES = {
    Endpoint.RESPONSES: _Rule("Responses"),
    Endpoint.CHAT_COMPLETIONS: _Rule("Chat Completions", True, "messages", _ARRAY),
    Endpoint.EMBEDDINGS: _Rule("Embeddings", True, "input", _BOTH),
    Endpoint.COMPLETIONS: _Rule("Completions", True, "prompt", _BOTH),
    Endpoint.MODERATIONS: _Rule("Moderations", False, "input", _BOTH),
    Endpoint.IMAGES_GENERATIONS: _Rule("Images", False, "prompt", _TEXT),
    Endpoint.IMAGES_EDITS: _Rule("Images", False, "prompt", _TEXT),
    Endpoint.VIDEOS: _Rule("Videos", False, "prompt", _TEXT),
}


class Problem(NamedTuple):
    code: Code
    param: str
    message: str


def kind_of(value: Value) -> str:
    """What a JSON value is, as a message says it."""
    if value is UNSET:
        return "nothing"
    data = memoryview(value)
    return _KINDS.get(data[0]) or ("a number" if _FRACTION.search(data) else "an integer")


def body_problems(endpoint: Endpoint, body: Body) -> list[Problem]:
    """What this endpoint refuses about the body; values it does not know are the backend's to judge."""
    rule = _RULES[endpoint]
    found = (_model_problem(rule, body.model), _field_problem(rule, body), _stream_problem(rule, body.stream))
    return [problem for problem in found if problem is not None]


def what_is_needed(endpoint: Endpoint) -> Callable[[UsualBody], bool]:
    """Whether there is no problem of `body_problems`."""
    rule = _RULES[endpoint]
    needs_model, begin = rule.model, _BEGIN[rule.kinds]
    field = attrgetter(rule.field) if rule.field else None

    def has_it(body: UsualBody) -> bool:
        if body.stream or (needs_model and body.model is UNSET):
            return False
        if field is None:
            return True
        value: Value = field(body)
        return value is not UNSET and memoryview(value)[0] in begin

    return has_it


def _model_problem(rule: _Rule, model: Value) -> Problem | None:
    kind = kind_of(model)
    if kind == "a string" and read_text(model):
        return None
    if kind in ("nothing", "null", "a string"):
        return _required("model") if rule.model else None
    return Problem(Code.INVALID_REQUEST, "body.model", f"Model parameter must be a string, but it is {kind}.")


def _field_problem(rule: _Rule, body: Body) -> Problem | None:
    if rule.field is None:
        return None
    kind = kind_of(_field(rule.field, body))
    if kind in rule.kinds:
        return None
    if kind in ("nothing", "null"):
        return _required(rule.field)
    message = f"{rule.field.capitalize()} parameter must be {' or '.join(rule.kinds)}, but it is {kind}."
    return Problem(Code.INVALID_REQUEST, f"body.{rule.field}", message)


def _stream_problem(rule: _Rule, stream: Value) -> Problem | None:
    if stream is UNSET or bytes(stream) in (b"false", b"null"):
        return None
    message = f"{rule.name}: Streaming is not supported in the Batch API."
    return Problem(Code.STREAMING_UNSUPPORTED, "body.stream", message)


def _field(name: str, body: Prompting) -> Value:
    match name:
        case "messages":
            return body.messages
        case "input":
            return body.input
        case _:
            return body.prompt


def _required(field: str) -> Problem:
    return Problem(Code.INVALID_REQUEST, f"body.{field}", f"{field.capitalize()} parameter is required.")


def count_inputs(value: Value, most: int) -> int:
    """How many texts an embedding's `input` asks for, counted up to `most` + 1 and in constant memory.

    A string or an array of tokens is one.
    """
    if value is UNSET or kind_of(value) != "an array":
        return 1
    data = memoryview(value)[1:-1]
    first = _ELEMENT.match(data)
    if first is None or first[0].lstrip(b" \t\r\n,")[:1] not in (b'"', b"["):
        return 1
    count, found = 0, first
    while found is not None and count <= most:
        count += 1
        found = _ELEMENT.match(data, found.end())
    return count
