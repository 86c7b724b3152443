"""Join the requests of several lines into one shared request (a microbatch), and split the response.

Each kind of request has an adapter, which also decides which lines may share a request.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec

from batchwright.rules.json_text import replace_lone_surrogates

_TOKENS = re.compile(rb"\[\s*+\d++(?:\s*+,\s*+\d++)*+\s*+\]")
_BYTES_A_TOKEN = 4
JsonFields = dict[str, msgspec.Raw]
_object = msgspec.json.Decoder(JsonFields)
_objects = msgspec.json.Decoder(list[JsonFields])
_integer = msgspec.json.Decoder(int)


class MicrobatchPart(NamedTuple):
    """The contribution of one line to a shared request, which contains the requests of several lines.

    Attributes:
        shared: the properties of the line's request, such as the model, as bytes. Lines may share a request
            only if these bytes are equal.
        own: the JSON that this line adds to the body of the shared request.
        tokens: estimated number of input tokens of the line.
    """

    shared: bytes
    own: bytes
    tokens: int  # estimated number of input tokens


class MicrobatchResult(NamedTuple):
    """The result of one line of a shared request, as if the line had been sent alone.

    If `problem` is not empty, the line failed with this message, and `status` is 0.
    """

    status: int
    body: bytes
    problem: str = ""


class MicrobatchFailed(Exception):
    """Raised if lines cannot be joined into one request, or if their shared response cannot be split.

    The message of the exception is the reason.
    """


class MicrobatchAdapter(Protocol):
    """The interface of objects that join the requests of several lines, and split the shared response.

    There is one adapter for each kind of request.
    """

    def part(self, body: bytes) -> MicrobatchPart | None:
        """Return what a line adds to a shared request; None if the line must be sent alone.

        `body` is the body of the line's request.
        """
        ...

    def join(self, parts: Sequence[MicrobatchPart]) -> bytes:
        """Return the body of one shared request for several lines.

        Args:
            parts: for each line, the result of `part`. Their `shared` bytes must be equal.

        Raises:
            MicrobatchFailed: the lines cannot be joined.
        """
        ...

    def split(self, response: bytes, parts: Sequence[MicrobatchPart]) -> list[MicrobatchResult]:
        """Divide the response to a shared request into one result per line, and return the results.

        A shared request contains the requests of several lines. The results are in the order of `parts`.

        Args:
            response: body of the response.
            parts: what each line added to the shared request: the same list as in the call of `join`.

        Raises:
            MicrobatchFailed: the response does not have one result for each line.
        """
        ...


class EmbeddingsAdapter:
    """The adapter that joins the embeddings requests of several lines, and splits the shared response.

    Lines may share a request if their inputs have the same type and all their other fields are equal.
    """

    def part(self, body: bytes) -> MicrobatchPart | None:
        try:
            fields = _object.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return None
        own = bytes(fields.pop("input", b""))
        if own.startswith(b'"') and own != b'""':
            kind, tokens = b"text", max(1, len(own) // _BYTES_A_TOKEN)
        elif _TOKENS.fullmatch(own):
            kind, tokens = b"tokens", own.count(b",") + 1
        else:
            return None
        params = msgspec.json.encode(dict(sorted(fields.items())))
        return MicrobatchPart(kind + params, own, tokens)

    def join(self, parts: Sequence[MicrobatchPart]) -> bytes:
        params = parts[0].shared.partition(b"{")[2]
        inputs = b'"input":[' + b",".join(part.own for part in parts) + b"]"
        return b"{" + inputs + (b"}" if params == b"}" else b"," + params)

    def split(self, response: bytes, parts: Sequence[MicrobatchPart]) -> list[MicrobatchResult]:
        try:
            whole = _object.decode(replace_lone_surrogates(response))
            items = _objects.decode(whole.pop("data", b"[]"))
            indexes = [_integer.decode(item["index"]) for item in items]
            usage = _divide_usage(whole.pop("usage", None), [part.tokens for part in parts])
        except (msgspec.MsgspecError, UnicodeDecodeError, KeyError) as error:
            raise MicrobatchFailed(f"the response is not a list of embeddings: {error}") from error
        if sorted(indexes) != list(range(len(parts))):
            raise MicrobatchFailed(f"the response has the indexes {indexes[:20]} for {len(parts)} inputs")
        if any("embedding" not in item for item in items):
            raise MicrobatchFailed("an item of the response has no embedding")
        by_index = dict(zip(indexes, items, strict=True))
        return [
            MicrobatchResult(200, _single_response(whole, by_index[index], usage[index]))
            for index in range(len(parts))
        ]


Count = int | float | None
Details = dict[str, Count]
Counts = dict[str, Count | Details]


def _single_response(whole: JsonFields, item: JsonFields, usage: Counts | None) -> bytes:
    response: dict[str, object] = {**whole, "data": [{**item, "index": 0}]}
    if usage is not None:
        response["usage"] = usage
    return msgspec.json.encode(response)


def _divide_usage(usage: msgspec.Raw | None, weights: Sequence[int]) -> list[Counts | None]:
    """Divide the token counts of a shared response between the lines, in proportion to `weights`.

    Return the token counts of each line. If the response has no usage, return None for each line.

    Args:
        usage: the field `usage` of the shared response.
        weights: estimated number of input tokens of each line.
    """
    counts = None if usage is None else msgspec.json.decode(usage, type=Counts | None)
    if counts is None:
        return [None] * len(weights)
    shares: list[Counts] = [{} for _ in weights]
    for name, value in counts.items():
        for share, part in zip(shares, _divide_value(value, weights), strict=True):
            share[name] = part
    return list(shares)


def _divide_value(value: Count | Details, weights: Sequence[int]) -> Sequence[Count | Details]:
    if isinstance(value, dict):
        inner = {name: _divide_count(count, weights) for name, count in value.items()}
        return [{name: parts[index] for name, parts in inner.items()} for index in range(len(weights))]
    return _divide_count(value, weights)


def _divide_count(count: Count, weights: Sequence[int]) -> Sequence[Count]:
    if count is None:
        return [None] * len(weights)
    if isinstance(count, float):
        return [count * weight / sum(weights) for weight in weights]
    return divide(count, weights)


def divide(total: int, weights: Sequence[int]) -> list[int]:
    """Divide `total` in proportion to the weights. Return one integer per weight; their sum is `total`."""
    whole = sum(weights)
    shares = [total * weight // whole for weight in weights]
    by_remainder = sorted(range(len(weights)), key=lambda index: -(total * weights[index] % whole))
    for index in by_remainder[: total - sum(shares)]:
        shares[index] += 1
    return shares


class MicrobatchSize:
    """The maximum number of lines in a shared request, which adapts to failures.

    Repeated failures halve this maximum, and successes raise it again. `current` is the maximum at present.
    """

    _FAILURES = 2
    # Number of successful single requests before sharing is tried again. If it never works, this costs two
    # extra requests per hundred.
    _ALONE = 100

    def __init__(self, max_lines: int) -> None:
        self._max_lines = self.current = max_lines
        self._failures = self._successes = 0

    def record_failure(self) -> None:
        """Count a failed shared request. After two failures in a row, halve the maximum number of lines.

        The maximum does not fall below one line.
        """
        self._failures, self._successes = self._failures + 1, 0
        if self._failures >= self._FAILURES:
            self.current, self._failures = max(1, self.current // 2), 0

    def record_success(self) -> None:
        """Count a successful shared request. After enough successes, raise the maximum by one line.

        The necessary number of successes is the maximum itself. Example: if the maximum is 8 lines, it is
        raised to 9 after 8 successes.
        """
        self._failures = 0
        self._grow(self.current)

    def record_single_success(self) -> None:
        """Count a successful line that was sent alone because the maximum is one line.

        After 100 such lines, two lines may share a request again.
        """
        if self.current == 1:
            self._grow(self._ALONE)

    def _grow(self, after: int) -> None:
        self._successes += 1
        if self.current < self._max_lines and self._successes >= after:
            self.current, self._successes = self.current + 1, 0
