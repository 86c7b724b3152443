"""Parses and checks the requests to all inference endpoints of the simulated backend."""

from dataclasses import dataclass

import msgspec

ENDPOINTS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/images/edits",
    "/v1/images/generations",
    "/v1/messages",
    "/v1/moderations",
    "/v1/rerank",
    "/v1/responses",
    "/v1/score",
    "/v1/videos",
)
_REQUIRED_FIELDS = {
    "/v1/chat/completions": "messages",
    "/v1/completions": "prompt",
    "/v1/embeddings": "input",
    "/v1/messages": "messages",
    "/v1/moderations": "input",
    "/v1/rerank": "documents",
    "/v1/responses": "input",
    "/v1/score": "text_2",
}
_ROLES = ("system", "assistant", "user", "function", "tool", "developer")
_MESSAGE_ROLES = ("user", "assistant")
_FORMATS = ("text", "json_object", "json_schema")
_VIDEO_SIZES = ("720x1280", "1280x720", "1024x1792", "1792x1024")
_NEEDS_MODEL = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/messages")
_STREAMS = ("/v1/chat/completions", "/v1/completions", "/v1/responses")
_ABSENT = msgspec.Raw(b"")


class InvalidCall(Exception):
    """A request is invalid. The error response contains `param` and `code`, as OpenAI's error objects do."""

    def __init__(self, message: str, param: str | None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class Metadata(msgspec.Struct):
    sim: str | None = None
    user_id: str | None = None  # messages only


class JsonSchema(msgspec.Struct):
    name: str | None = None
    schema: dict[str, object] | None = None


class TextFormat(msgspec.Struct):
    """The format that the text of a response must have.

    A request has it in the field `response_format` (chat completions) or `text.format` (`/v1/responses`).
    """

    type: str | None = None
    json_schema: JsonSchema | None = None  # chat completions only
    name: str | None = None  # responses only
    schema: dict[str, object] | None = None

    @property
    def output_schema(self) -> dict[str, object] | None:
        """The JSON schema to which the text of the response must conform.

        - If `type` is not `json_schema`, the result is None. The text can then be any JSON object.
        - If `type` is `json_schema` without a schema, the result is {}. The text can then be any JSON value.
        """
        if self.type != "json_schema":
            return None
        return (self.json_schema.schema if self.json_schema else self.schema) or {}


class TextOptions(msgspec.Struct):
    format: TextFormat | None = None


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class InputMessage(msgspec.Struct):
    role: str | None = None


class CallBody(msgspec.Struct):
    """The fields of a request body that influence the response, for all endpoints together."""

    model: str | None = None
    user: str | None = None
    metadata: Metadata | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    max_output_tokens: int | None = None
    dimensions: int | None = None
    encoding_format: str | None = None
    response_format: TextFormat | str | None = None  # a string for images
    text: TextOptions | None = None
    seconds: str | int | None = None
    size: str | None = None
    instructions: msgspec.Raw = _ABSENT
    system: msgspec.Raw = _ABSENT
    tools: msgspec.Raw = _ABSENT
    messages: msgspec.Raw = _ABSENT
    prompt: msgspec.Raw = _ABSENT
    input: msgspec.Raw = _ABSENT
    query: msgspec.Raw = _ABSENT
    documents: msgspec.Raw = _ABSENT
    text_1: msgspec.Raw = _ABSENT
    text_2: msgspec.Raw = _ABSENT


@dataclass(slots=True)
class InferenceCall:
    """A valid request.

    Attributes:
        prompt: all inputs as JSON. It begins with the parts that most requests have in common.
        marker: value of the field `metadata.sim`. If this field is missing, the attribute `user`. A marker
            such as `sim:503` asks for a fault (an error or a delay on purpose). None if both are missing.
        format: required format of the response; None if the response may be any text.
    """

    endpoint: str
    model: str
    body: CallBody
    prompt: bytes
    user: str | None
    marker: str | None
    format: TextFormat | None

    @property
    def choices(self) -> int:
        return self.body.n or 1

    @property
    def output_limit(self) -> int | None:
        limits = (self.body.max_completion_tokens, self.body.max_output_tokens, self.body.max_tokens)
        return next((limit for limit in limits if limit is not None), None)

    @property
    def format_parameter(self) -> str:
        return "text.format" if self.endpoint == "/v1/responses" else "response_format"


_decoder = msgspec.json.Decoder(CallBody)
_read_messages = msgspec.json.Decoder(list[InputMessage]).decode


def read_call(endpoint: str, raw: bytes, default_model: str) -> InferenceCall:
    """Parse and check the body of a request, and return its content.

    If the body names no model, the model is `default_model`. Some endpoints require a model in the body.

    Raises:
        InvalidCall: the body is not JSON, or a required field is missing, or a field is invalid.
    """
    try:
        body = _decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidCall(f"We could not parse the JSON body of your request: {error}", None) from None
    if body.model is None and endpoint in _NEEDS_MODEL:
        raise InvalidCall("you must provide a model parameter", "model")
    if body.stream and endpoint not in _STREAMS:
        raise InvalidCall(f"The simulator does not stream {endpoint}.", "stream", "unsupported_value")
    parts = (body.instructions, body.system, body.tools, body.messages, body.prompt, body.input)
    prompt = b"".join((*parts, body.query, body.text_1, body.documents, body.text_2))
    _check(endpoint, body)
    user = body.user or (body.metadata.user_id if body.metadata else None)
    marker = (body.metadata.sim if body.metadata else None) or user
    call = InferenceCall(endpoint, body.model or default_model, body, prompt, user, marker, None)
    found = body.response_format or (body.text and body.text.format)
    if isinstance(found, TextFormat) and found.type != "text":
        _check_format(found, call.format_parameter)
        call.format = found
    return call


def _check(endpoint: str, body: CallBody) -> None:
    needed = _REQUIRED_FIELDS.get(endpoint)
    if needed and not getattr(body, needed):
        raise _missing(needed)
    if body.n is not None and not 1 <= body.n <= 128:
        raise InvalidCall(f"'n' is {body.n}; it may be 1 to 128.", "n", "invalid_value")
    if endpoint == "/v1/chat/completions":
        _check_messages(body.messages, _ROLES)
    if endpoint == "/v1/messages":
        _check_messages(body.messages, _MESSAGE_ROLES)
        if body.max_tokens is None:
            raise _missing("max_tokens")
    if endpoint == "/v1/videos" and body.size not in (None, *_VIDEO_SIZES):
        raise _unsupported("size", body.size, _VIDEO_SIZES)


def _check_messages(raw: msgspec.Raw, roles: tuple[str, ...]) -> None:
    try:
        messages = _read_messages(raw)
    except msgspec.DecodeError:
        message = "Invalid type for 'messages': expected an array of objects."
        raise InvalidCall(message, "messages", "invalid_type") from None
    for index, message in enumerate(messages):
        if message.role is None:
            raise _missing(f"messages[{index}].role")
        if message.role not in roles:
            raise _unsupported(f"messages[{index}].role", message.role, roles)


def _check_format(found: TextFormat, parameter: str) -> None:
    if found.type not in _FORMATS:
        raise _unsupported(f"{parameter}.type", found.type, _FORMATS)
    if found.type == "json_schema" and parameter == "response_format":
        if found.json_schema is None:
            raise _missing(f"{parameter}.json_schema")
        if found.json_schema.name is None:
            raise _missing(f"{parameter}.json_schema.name")
    elif found.type == "json_schema":
        for name in ("name", "schema"):
            if getattr(found, name) is None:
                raise _missing(f"{parameter}.{name}")


def _missing(parameter: str) -> InvalidCall:
    return InvalidCall(f"Missing required parameter: '{parameter}'.", parameter, "missing_required_parameter")


def _unsupported(parameter: str, value: str | None, values: tuple[str, ...]) -> InvalidCall:
    if value is None:
        return _missing(parameter)
    listed = ", ".join(f"'{one}'" for one in values)
    return InvalidCall(
        f"Invalid value: '{value}'. Supported values are: {listed}.", parameter, "invalid_value"
    )
