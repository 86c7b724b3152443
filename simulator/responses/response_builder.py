"""Builds the response bodies of all endpoints. Equal requests get equal responses, except `cached_tokens`."""

import base64
import struct
from collections.abc import Callable
from hashlib import blake2b

import msgspec

from batchwright.simulator.call_parser import InferenceCall, InvalidCall
from batchwright.simulator.prefix_cache import token_count
from batchwright.simulator.responses import response_types
from batchwright.simulator.responses.json_schema import UnusableSchema, write_json

_TEXT = (
    "a batch of lines went out at night and every one came home with its answer in hand none lost "
    "none asked again while the window stood open over slow machines that kept on counting tokens until "
    "the last result was written down in order then all was quiet and plain to read by anyone who cared"
)
WORDS = _TEXT.split()
_CATEGORIES = (
    "harassment",
    "harassment/threatening",
    "hate",
    "hate/threatening",
    "illicit",
    "illicit/violent",
    "self-harm",
    "self-harm/instructions",
    "self-harm/intent",
    "sexual",
    "sexual/minors",
    "violence",
    "violence/graphic",
)
_TEXT_ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses")

_encode = msgspec.json.Encoder().encode


class ResponseCost(msgspec.Struct):
    """The numbers of tokens of a request and its response, for `usage`, the latency and the ledger.

    Attributes:
        prompt: number of prompt tokens.
        cached: number of prompt tokens that were in the prefix cache.
        each: number of output tokens of one choice (one of the alternative texts of a response).
        output: number of output tokens of all choices together; 0 if the endpoint generates no text.
    """

    prompt: int
    cached: int
    each: int
    output: int


def response_cost(call: InferenceCall, cached: int, output_tokens: int) -> ResponseCost:
    """Count the tokens of a request's prompt and of the response to it.

    Args:
        cached: number of prompt tokens that were in the prefix cache.
        output_tokens: number of output tokens of one choice (one of the alternative texts of a response). If
            the maximum in the request is smaller, the maximum is used.
    """
    limit = call.output_limit
    each = output_tokens if limit is None else min(output_tokens, max(limit, 0))
    output = each * call.choices if call.endpoint in _TEXT_ENDPOINTS else 0
    return ResponseCost(token_count(call.prompt), cached, each, output)


def generate_text(digest: bytes, tokens: int) -> str:
    """Return a text of `tokens` words. Equal digests give equal texts."""
    words = [WORDS[byte % len(WORDS)] for byte in digest]
    while len(words) < tokens:
        words += words
    return " ".join(words[:tokens])


def build_response(call: InferenceCall, digest: bytes, cost: ResponseCost, dimensions: int) -> bytes:
    """Return the body of the response to a request, as JSON.

    `dimensions` is the length of an embedding if the request sets no length.

    Raises:
        InvalidCall: the endpoint does not accept the type of the input, or no JSON can be written for the
            requested schema.
    """
    if call.endpoint == "/v1/embeddings":
        return _embeddings(call, cost, dimensions)
    return _WRITERS[call.endpoint](call, digest, cost)


def _chat(call: InferenceCall, digest: bytes, cost: ResponseCost) -> bytes:
    finish = _finish(call, cost)
    choices = [
        response_types.ChatChoice(
            index, response_types.ChatMessage(_choice(call, digest, index, cost)), finish
        )
        for index in range(call.choices)
    ]
    return _encode(
        response_types.ChatCompletion(f"chatcmpl-{digest.hex()}", call.model, choices, _usage(cost))
    )


def _completions(call: InferenceCall, digest: bytes, cost: ResponseCost) -> bytes:
    finish = _finish(call, cost)
    choices = [
        response_types.TextChoice(index, _choice(call, digest, index, cost), finish)
        for index in range(call.choices)
    ]
    return _encode(response_types.TextCompletion(f"cmpl-{digest.hex()}", call.model, choices, _usage(cost)))


def _responses(call: InferenceCall, digest: bytes, cost: ResponseCost) -> bytes:
    text = response_types.OutputText(_choice(call, digest, 0, cost))
    usage = response_types.ResponseUsage(
        input_tokens=cost.prompt,
        input_tokens_details=response_types.InputTokens(cost.cached),
        output_tokens=cost.output,
        output_tokens_details=response_types.ReasoningTokens(),
        total_tokens=cost.prompt + cost.output,
    )
    message = response_types.OutputMessage(f"msg_{digest.hex()}", [text])
    return _encode(response_types.ResponseObject(f"resp_{digest.hex()}", call.model, [message], usage))


def _message(call: InferenceCall, digest: bytes, cost: ResponseCost) -> bytes:
    """Return the response to a request of Anthropic's Messages API.

    As in this API, the number `input_tokens` does not include cached tokens.
    """
    text = response_types.TextBlock(_choice(call, digest, 0, cost))
    usage = response_types.MessageUsage(cost.prompt - cost.cached, cost.output, cost.cached)
    stop = "max_tokens" if _finish(call, cost) == "length" else "end_turn"
    return _encode(response_types.MessageResponse(f"msg_{digest.hex()}", call.model, [text], stop, usage))


def _embeddings(call: InferenceCall, cost: ResponseCost, dimensions: int) -> bytes:
    size = call.body.dimensions or dimensions
    data: list[response_types.Embedding] = []
    for index, item in enumerate(_items(call.body.input)):
        vector = _vector(item, size)
        if call.body.encoding_format == "base64":
            packed = struct.pack(f"<{size}f", *vector)
            data.append(response_types.Embedding(index, base64.b64encode(packed).decode()))
        else:
            data.append(response_types.Embedding(index, vector))
    return _encode(
        response_types.EmbeddingList(data, call.model, response_types.PromptUsage(cost.prompt, cost.prompt))
    )


def _moderations(call: InferenceCall, digest: bytes, cost: ResponseCost) -> bytes:
    results: list[response_types.ModerationResult] = []
    for item in _items(call.body.input):
        flags = {name: name.encode() in item.lower() for name in _CATEGORIES}
        scores = {name: 0.99 if flag else 0.01 for name, flag in flags.items()}
        types = {name: ["text"] for name in _CATEGORIES}
        results.append(response_types.ModerationResult(any(flags.values()), flags, scores, types))
    return _encode(response_types.Moderation(f"modr-{digest.hex()}", call.model, results))


def _scores(call: InferenceCall, digest: bytes, cost: ResponseCost) -> bytes:
    texts = _items(call.body.text_2)
    data = [response_types.Score(index, _relevance(text)) for index, text in enumerate(texts)]
    usage = response_types.PromptUsage(cost.prompt, cost.prompt)
    return _encode(response_types.ScoreList(f"score-{digest.hex()}", data, call.model, usage))


def _ranking(call: InferenceCall, digest: bytes, cost: ResponseCost) -> bytes:
    """Return the response to a rerank request: the documents of the request, most relevant first."""
    ranked = [
        response_types.RankedResult(index, response_types.RankedDocument(text.decode()), _relevance(text))
        for index, text in enumerate(_items(call.body.documents))
    ]
    ranked.sort(key=lambda each: each.relevance_score, reverse=True)
    usage = response_types.PromptUsage(cost.prompt, cost.prompt)
    return _encode(response_types.Ranking(f"rerank-{digest.hex()}", ranked, call.model, usage))


def _relevance(text: bytes) -> float:
    """Return a number from 0 to 1 that stands for the relevance of a text. Equal texts get equal numbers."""
    return round(blake2b(text, digest_size=1).digest()[0] / 255, 6)


def _images(call: InferenceCall, digest: bytes, cost: ResponseCost) -> bytes:
    image = response_types.Image(base64.b64encode(digest).decode())
    return _encode(response_types.ImageList([image] * call.choices))


def _videos(call: InferenceCall, digest: bytes, cost: ResponseCost) -> bytes:
    body = call.body
    prompt = msgspec.json.decode(body.prompt) if bytes(body.prompt).startswith(b'"') else None
    seconds, size = str(body.seconds or 4), body.size or "720x1280"
    return _encode(response_types.Video(f"video_{digest.hex()}", call.model, prompt, seconds, size))


_WRITERS: dict[str, Callable[[InferenceCall, bytes, ResponseCost], bytes]] = {
    "/v1/chat/completions": _chat,
    "/v1/completions": _completions,
    "/v1/responses": _responses,
    "/v1/messages": _message,
    "/v1/moderations": _moderations,
    "/v1/images/generations": _images,
    "/v1/images/edits": _images,
    "/v1/videos": _videos,
    "/v1/score": _scores,
    "/v1/rerank": _ranking,
}


def _choice(call: InferenceCall, digest: bytes, index: int, cost: ResponseCost) -> str:
    """Return the text of choice number `index` (one of the alternative texts) in the format of the request.

    Raises:
        InvalidCall: the request has a JSON schema for which no JSON can be written.
    """
    turn = index % len(digest)
    text = generate_text(digest[turn:] + digest[:turn], cost.each)
    if call.format is None:
        return text
    try:
        return write_json(call.format.output_schema, text)
    except UnusableSchema as error:
        raise InvalidCall(f"Invalid schema: {error}", call.format_parameter) from None


def _finish(call: InferenceCall, cost: ResponseCost) -> str:
    if call.format is not None:
        return "stop"  # JSON is never cut
    return "length" if call.output_limit is not None and cost.each >= call.output_limit else "stop"


def _usage(cost: ResponseCost) -> response_types.ChatUsage:
    total = cost.prompt + cost.output
    return response_types.ChatUsage(cost.prompt, cost.output, total, response_types.CachedTokens(cost.cached))


def _items(raw: msgspec.Raw) -> list[bytes]:
    """Return the items of a request's input, each as JSON. A string or a list of numbers is a single item.

    Raises InvalidCall if the input is neither a string nor an array.
    """
    whole = bytes(raw)
    if whole.startswith(b'"'):
        return [whole]
    try:
        items = [bytes(item) for item in msgspec.json.decode(whole, type=list[msgspec.Raw])]
    except msgspec.DecodeError:
        raise InvalidCall("'input' is neither a string nor an array.", "input", "invalid_type") from None
    return [whole] if items and items[0][:1].isdigit() else items


def _vector(item: bytes, size: int) -> list[float]:
    """Return an embedding: `size` numbers from -1 to 1. Equal items get equal numbers."""
    stream = bytearray()
    while len(stream) < size:
        stream += blake2b(item + len(stream).to_bytes(4, "big")).digest()
    return [round(byte / 127.5 - 1, 6) for byte in stream[:size]]
