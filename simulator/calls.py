"""Reading the requests of the endpoints."""

from dataclasses import dataclass

import msgspec

ENDPOINTS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/images/edits",
    "/v1/images/generations",
    "/v1/moderations",
    "/v1/responses",
    "/v1/videos",
)
_NEEDS = {
    "/v1/chat/completions": "messages",
    "/v1/completions": "prompt",
    "/v1/embeddings": "input",
    "/v1/moderations": "input",
    "/v1/responses": "input",
}
_NEEDS_MODEL = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings")
_NOTHING = msgspec.Raw(b"")


class BadCall(Exception):
    """The body cannot be served; `param` and `code` as in OpenAI's error object."""

    def __init__(self, message: str, param: str | None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class Metadata(msgspec.Struct):
    sim: str | None = None


class Body(msgspec.Struct):
    """Of all endpoints together: only what an answer depends on."""

    model: str | None = None
    user: str | None = None
    metadata: Metadata | None = None
    stream: bool | None = None
    n: int | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    max_output_tokens: int | None = None
    dimensions: int | None = None
    encoding_format: str | None = None
    instructions: msgspec.Raw = _NOTHING
    tools: msgspec.Raw = _NOTHING
    messages: msgspec.Raw = _NOTHING
    prompt: msgspec.Raw = _NOTHING
    input: msgspec.Raw = _NOTHING


@dataclass(slots=True)
class Call:
    """A request that can be answered. `prompt` is JSON, the part that is shared most often first."""

    endpoint: str
    model: str
    body: Body
    prompt: bytes
    user: str | None
    marker: str | None

    @property
    def choices(self) -> int:
        return self.body.n or 1

    @property
    def output_limit(self) -> int | None:
        limits = (self.body.max_completion_tokens, self.body.max_output_tokens, self.body.max_tokens)
        return next((limit for limit in limits if limit is not None), None)


_decoder = msgspec.json.Decoder(Body)


def read_call(endpoint: str, raw: bytes, default_model: str) -> Call:
    """
    Raises:
        BadCall: the body is not JSON, or lacks what the endpoint needs.
    """
    try:
        body = _decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadCall(f"We could not parse the JSON body of your request: {error}", None) from None
    if body.model is None and endpoint in _NEEDS_MODEL:
        raise BadCall("you must provide a model parameter", "model")
    if body.stream:
        raise BadCall("The simulator does not stream.", "stream", "unsupported_value")
    prompt = b"".join((body.instructions, body.tools, body.messages, body.prompt, body.input))
    _check(endpoint, body)
    marker = (body.metadata.sim if body.metadata else None) or body.user
    return Call(endpoint, body.model or default_model, body, prompt, body.user, marker)


def _check(endpoint: str, body: Body) -> None:
    needed = _NEEDS.get(endpoint)
    if needed and not {"messages": body.messages, "prompt": body.prompt, "input": body.input}[needed]:
        raise BadCall(f"Missing required parameter: '{needed}'.", needed, "missing_required_parameter")
    if body.n is not None and not 1 <= body.n <= 128:
        raise BadCall(f"'n' is {body.n}; it may be 1 to 128.", "n", "invalid_value")
