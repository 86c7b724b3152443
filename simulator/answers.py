"""Answers, the same for the same body; only `cached_tokens` depends on what came before."""

import base64
import struct
from collections.abc import Callable
from hashlib import blake2b

import msgspec

from simulator import shapes
from simulator.cache import token_count
from simulator.calls import BadCall, Call

_TEXT = (
    "a batch of lines went out at night and every one came home with its answer in hand none lost "
    "none asked again while the window stood open over slow machines that kept on counting tokens until "
    "the last result was written down in order then all was quiet and plain to read by anyone who cared"
)
WORDS = _TEXT.split()
_CATEGORIES = ("harassment", "hate", "illicit", "self-harm", "sexual", "violence")
_WRITING = ("/v1/chat/completions", "/v1/completions", "/v1/responses")

_encode = msgspec.json.Encoder().encode


class Spent(msgspec.Struct):
    """What an answer costs, for its `usage`, its latency and the ledger; `each` is one choice's output."""

    prompt: int
    cached: int
    each: int
    output: int


def spent_on(call: Call, cached: int, output_tokens: int) -> Spent:
    """`output_tokens` is how long an answer is when the request sets no lower limit."""
    limit = call.output_limit
    each = output_tokens if limit is None else min(output_tokens, max(limit, 0))
    output = each * call.choices if call.endpoint in _WRITING else 0
    return Spent(token_count(call.prompt), cached, each, output)


def write_text(digest: bytes, tokens: int) -> str:
    """`tokens` words; which ones and their order follow from `digest`."""
    words = [WORDS[byte % len(WORDS)] for byte in digest]
    while len(words) < tokens:
        words += words
    return " ".join(words[:tokens])


def answer_to(call: Call, digest: bytes, spent: Spent, dimensions: int) -> bytes:
    """
    Raises:
        BadCall: the input is of a type that the endpoint does not take.
    """
    if call.endpoint == "/v1/embeddings":
        return _embeddings(call, spent, dimensions)
    return _WRITERS[call.endpoint](call, digest, spent)


def _chat(call: Call, digest: bytes, spent: Spent) -> bytes:
    finish = _finish(call, spent)
    choices = [
        shapes.ChatChoice(index, shapes.ChatMessage(_choice(digest, index, spent)), finish)
        for index in range(call.choices)
    ]
    return _encode(shapes.Chat(f"chatcmpl-{digest.hex()}", call.model, choices, _usage(spent)))


def _completions(call: Call, digest: bytes, spent: Spent) -> bytes:
    finish = _finish(call, spent)
    choices = [
        shapes.TextChoice(index, _choice(digest, index, spent), finish) for index in range(call.choices)
    ]
    return _encode(shapes.Completion(f"cmpl-{digest.hex()}", call.model, choices, _usage(spent)))


def _responses(call: Call, digest: bytes, spent: Spent) -> bytes:
    text = shapes.OutputText(write_text(digest, spent.each))
    usage = shapes.ResponseUsage(
        input_tokens=spent.prompt,
        input_tokens_details=shapes.CachedTokens(spent.cached),
        output_tokens=spent.output,
        output_tokens_details=shapes.ReasoningTokens(),
        total_tokens=spent.prompt + spent.output,
    )
    message = shapes.OutputMessage(f"msg_{digest.hex()}", [text])
    return _encode(shapes.Response(f"resp_{digest.hex()}", call.model, [message], usage))


def _embeddings(call: Call, spent: Spent, dimensions: int) -> bytes:
    size = call.body.dimensions or dimensions
    data: list[shapes.Embedding] = []
    for index, item in enumerate(_items(call.body.input)):
        vector = _vector(item, size)
        if call.body.encoding_format == "base64":
            packed = struct.pack(f"<{size}f", *vector)
            data.append(shapes.Embedding(index, base64.b64encode(packed).decode()))
        else:
            data.append(shapes.Embedding(index, vector))
    return _encode(shapes.Embeddings(data, call.model, shapes.PromptUsage(spent.prompt, spent.prompt)))


def _moderations(call: Call, digest: bytes, spent: Spent) -> bytes:
    results: list[shapes.Verdict] = []
    for item in _items(call.body.input):
        flags = {name: name.encode() in item.lower() for name in _CATEGORIES}
        scores = {name: 0.99 if flag else 0.01 for name, flag in flags.items()}
        results.append(shapes.Verdict(any(flags.values()), flags, scores))
    return _encode(shapes.Moderation(f"modr-{digest.hex()}", call.model, results))


def _images(call: Call, digest: bytes, spent: Spent) -> bytes:
    image = shapes.Image(base64.b64encode(digest).decode())
    return _encode(shapes.Images([image] * call.choices))


def _videos(call: Call, digest: bytes, spent: Spent) -> bytes:
    return _encode(shapes.Video(f"video_{digest.hex()}", call.model))


_WRITERS: dict[str, Callable[[Call, bytes, Spent], bytes]] = {
    "/v1/chat/completions": _chat,
    "/v1/completions": _completions,
    "/v1/responses": _responses,
    "/v1/moderations": _moderations,
    "/v1/images/generations": _images,
    "/v1/images/edits": _images,
    "/v1/videos": _videos,
}


def _choice(digest: bytes, index: int, spent: Spent) -> str:
    """The choices of one answer differ."""
    turn = index % len(digest)
    return write_text(digest[turn:] + digest[:turn], spent.each)


def _finish(call: Call, spent: Spent) -> str:
    return "length" if call.output_limit is not None and spent.each >= call.output_limit else "stop"


def _usage(spent: Spent) -> shapes.Usage:
    total = spent.prompt + spent.output
    return shapes.Usage(spent.prompt, spent.output, total, shapes.CachedTokens(spent.cached))


def _items(raw: msgspec.Raw) -> list[bytes]:
    """The inputs one by one, as JSON: a string or a list of numbers is one input."""
    whole = bytes(raw)
    if whole.startswith(b'"'):
        return [whole]
    try:
        items = [bytes(item) for item in msgspec.json.decode(whole, type=list[msgspec.Raw])]
    except msgspec.DecodeError:
        raise BadCall("'input' is neither a string nor an array.", "input", "invalid_type") from None
    return [whole] if items and items[0][:1].isdigit() else items


def _vector(item: bytes, size: int) -> list[float]:
    """Numbers from -1 to 1 that follow from `item`."""
    stream = bytearray()
    while len(stream) < size:
        stream += blake2b(item + len(stream).to_bytes(4, "big")).digest()
    return [round(byte / 127.5 - 1, 6) for byte in stream[:size]]
