"""Input lines that validation rejects, each with the expected error."""

import json
from typing import NamedTuple

from batchwright.contracts.terms import Endpoint

CHAT = Endpoint.CHAT_COMPLETIONS
EMBEDDINGS = Endpoint.EMBEDDINGS
GOOD = {
    "custom_id": "a",
    "method": "POST",
    "url": "/v1/chat/completions",
    "body": {"model": "m", "messages": [{"role": "user", "content": "hello"}]},
}


def a_line(**changes: object) -> bytes:
    """Return a valid chat line with some fields changed. The value None removes a field."""
    return json.dumps(
        {key: value for key, value in {**GOOD, **changes}.items() if value is not None}
    ).encode()


def with_body(body: object, endpoint: Endpoint = CHAT) -> bytes:
    return a_line(url=endpoint.value, body=body)


class Case(NamedTuple):
    title: str
    line: bytes
    code: str
    param: str | None
    message: str
    endpoint: Endpoint = CHAT


NOT_JSON = "This line is not parseable as valid JSON."
STREAM = "Chat Completions: Streaming is not supported in the Batch API."
WANTED = "expected a non-empty string, but got"
CASES = [
    Case("unclosed object", b"{", "invalid_json_line", None, NOT_JSON),
    Case("array cut off", b"[1", "invalid_json_line", None, NOT_JSON),
    Case("NaN", b'{"a":NaN}', "invalid_json_line", None, NOT_JSON),
    Case("invalid UTF-8", a_line().replace(b"hello", b"\xff"), "invalid_json_line", None, NOT_JSON),
    Case(
        "a surrogate without an escape",
        a_line().replace(b"hello", b"\xed\xa0\x80"),
        "invalid_json_line",
        None,
        NOT_JSON,
    ),
    Case("half an escape", a_line().replace(b"hello", rb"\ud8"), "invalid_json_line", None, NOT_JSON),
    Case("half a pair", rb'"\ud800"', "invalid_request", None, "This line is not a JSON object."),
    Case(
        "nested too deep",
        b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        "invalid_json_line",
        None,
        NOT_JSON,
    ),
    Case("an array", b"[]", "invalid_request", None, "This line is not a JSON object."),
    Case("null", b"null", "invalid_request", None, "This line is not a JSON object."),
    Case(
        "no custom_id",
        a_line(custom_id=None),
        "missing_required_parameter",
        "custom_id",
        "Missing required parameter: 'custom_id'.",
    ),
    Case(
        "empty custom_id",
        a_line(custom_id=""),
        "invalid_type",
        "custom_id",
        f"Invalid type for 'custom_id': {WANTED} an empty string instead.",
    ),
    Case(
        "number as custom_id",
        a_line(custom_id=7),
        "invalid_type",
        "custom_id",
        f"Invalid type for 'custom_id': {WANTED} an integer instead.",
    ),
    Case(
        "fraction as custom_id",
        a_line(custom_id=0.5),
        "invalid_type",
        "custom_id",
        f"Invalid type for 'custom_id': {WANTED} a number instead.",
    ),
    Case(
        "GET",
        a_line(method="GET"),
        "invalid_method",
        "method",
        "Invalid method. Only POST is supported in the Batch API.",
    ),
    Case(
        "number as method",
        a_line(method=1),
        "invalid_method",
        "method",
        "Invalid method. Only POST is supported in the Batch API.",
    ),
    Case(
        "other endpoint",
        a_line(url="/v1/embeddings"),
        "invalid_url",
        "url",
        "The URL provided for this request, '/v1/embeddings', does not match the batch endpoint, "
        "'/v1/chat/completions'.",
    ),
    Case(
        "no body",
        a_line(body=None),
        "missing_required_parameter",
        "body",
        "Missing required parameter: 'body'.",
    ),
    Case(
        "array as body",
        a_line(body=[]),
        "invalid_type",
        "body",
        "Invalid type for 'body': expected an object, but got an array instead.",
    ),
    Case(
        "no model",
        with_body({"messages": []}),
        "invalid_request",
        "body.model",
        "Model parameter is required.",
    ),
    Case(
        "empty model",
        with_body({"model": "", "messages": []}),
        "invalid_request",
        "body.model",
        "Model parameter is required.",
    ),
    Case(
        "boolean as model",
        with_body({"model": True, "messages": []}),
        "invalid_request",
        "body.model",
        "Model parameter must be a string, but it is a boolean.",
    ),
    Case(
        "no messages",
        with_body({"model": "m"}),
        "invalid_request",
        "body.messages",
        "Messages parameter is required.",
    ),
    Case(
        "text as messages",
        with_body({"model": "m", "messages": "hi"}),
        "invalid_request",
        "body.messages",
        "Messages parameter must be an array, but it is a string.",
    ),
    Case(
        "stream",
        with_body({"model": "m", "messages": [], "stream": True}),
        "streaming_unsupported",
        "body.stream",
        STREAM,
    ),
    Case(
        "truthy stream",
        with_body({"model": "m", "messages": [], "stream": "yes"}),
        "streaming_unsupported",
        "body.stream",
        STREAM,
    ),
    Case(
        "no input",
        with_body({"model": "m"}, EMBEDDINGS),
        "invalid_request",
        "body.input",
        "Input parameter is required.",
        EMBEDDINGS,
    ),
    Case(
        "object as input",
        with_body({"model": "m", "input": {}}, EMBEDDINGS),
        "invalid_request",
        "body.input",
        "Input parameter must be a string or an array, but it is an object.",
        EMBEDDINGS,
    ),
]
