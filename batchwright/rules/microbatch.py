"""Several lines in one request: which may share one, and what each gets of its answer (S1-194 to S1-226).

Pure: `batchwright.inference.grouping` sends, this says what. A kind of request takes part through an adapter.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec

_TOKENS = re.compile(rb"\[\s*\d+(?:\s*,\s*\d+)*\s*\]")
_BYTES_A_TOKEN = 4

Object = dict[str, msgspec.Raw]
_object = msgspec.json.Decoder(Object)
_objects = msgspec.json.Decoder(list[Object])
_integer = msgspec.json.Decoder(int)


class Part(NamedTuple):
    """One line of a shared request. Lines with equal `shared` may go together; `own` is the line's JSON."""

    shared: bytes
    own: bytes
    tokens: int  # estimated


class Result(NamedTuple):
    """A line's share of the answer, as a backend would have answered it alone.

    `problem`: the line ends with an error that says this; `status` is 0 then.
    """

    status: int
    body: bytes
    problem: str = ""


class CannotShare(Exception):
    """Lines cannot be joined, or their answer does not say which line gets what; the message says why."""


class Adapter(Protocol):
    """How requests of one kind are joined, and their common answer is split."""

    def part(self, body: bytes) -> Part | None:
        """None where the line has to be asked alone. Never raises, whatever the body is."""
        ...

    def join(self, parts: Sequence[Part]) -> bytes:
        """One body for parts whose `shared` is equal. May raise CannotShare."""
        ...

    def split(self, answer: bytes, parts: Sequence[Part]) -> list[Result]:
        """In the order of `parts`, one each. Raises CannotShare."""
        ...


class Embeddings:
    """A string or an array of tokens each; equal model, encoding format, dimensions and all else (S1-197)."""

    def part(self, body: bytes) -> Part | None:
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
        return Part(kind + params, own, tokens)

    def join(self, parts: Sequence[Part]) -> bytes:
        params = parts[0].shared.partition(b"{")[2]
        inputs = b'"input":[' + b",".join(part.own for part in parts) + b"]"
        return b"{" + inputs + (b"}" if params == b"}" else b"," + params)

    def split(self, answer: bytes, parts: Sequence[Part]) -> list[Result]:
        try:
            whole = _object.decode(answer)
            items = _objects.decode(whole.pop("data", b"[]"))
            places = [_integer.decode(item["index"]) for item in items]
            usage = _shares_of(whole.pop("usage", None), [part.tokens for part in parts])
        except (msgspec.MsgspecError, UnicodeDecodeError, KeyError) as error:
            raise CannotShare(f"the answer is not a list of embeddings: {error}") from error
        if sorted(places) != list(range(len(parts))):
            raise CannotShare(f"the answer has the indexes {places[:20]} for {len(parts)} inputs")
        if any("embedding" not in item for item in items):
            raise CannotShare("an item of the answer has no embedding")
        by_place = dict(zip(places, items, strict=True))
        return [Result(200, _alone(whole, by_place[place], usage[place])) for place in range(len(parts))]


Count = int | float | None
Details = dict[str, Count]
Counts = dict[str, Count | Details]


def _alone(whole: Object, item: Object, usage: Counts | None) -> bytes:
    answer: dict[str, object] = {**whole, "data": [{**item, "index": 0}]}
    if usage is not None:
        answer["usage"] = usage
    return msgspec.json.encode(answer)


def _shares_of(usage: msgspec.Raw | None, weights: Sequence[int]) -> list[Counts | None]:
    """Each count of the common usage, divided (S1-200, S1-209); nested details too."""
    counts = None if usage is None else msgspec.json.decode(usage, type=Counts | None)
    if counts is None:
        return [None] * len(weights)
    shares: list[Counts] = [{} for _ in weights]
    for name, value in counts.items():
        for share, part in zip(shares, _divided(value, weights), strict=True):
            share[name] = part
    return list(shares)


def _divided(value: Count | Details, weights: Sequence[int]) -> Sequence[Count | Details]:
    if isinstance(value, dict):
        inner = {name: _shared(count, weights) for name, count in value.items()}
        return [{name: parts[place] for name, parts in inner.items()} for place in range(len(weights))]
    return _shared(value, weights)


def _shared(count: Count, weights: Sequence[int]) -> Sequence[Count]:
    if count is None:
        return [None] * len(weights)
    if isinstance(count, float):
        return [count * weight / sum(weights) for weight in weights]
    return divide(count, weights)


def divide(total: int, weights: Sequence[int]) -> list[int]:
    """`total` by weight in whole numbers that add up to it; the largest remainders get the rest."""
    whole = sum(weights)
    shares = [total * weight // whole for weight in weights]
    by_remainder = sorted(range(len(weights)), key=lambda place: -(total * weights[place] % whole))
    for place in by_remainder[: total - sum(shares)]:
        shares[place] += 1
    return shares


class ChunkSize:
    """How many lines share a request now: after repeated failures half as many, down to one (S1-205)."""

    _FAILURES = 2
    # Where nothing can be shared, trying costs two requests in so many; elsewhere an outage is forgotten.
    _ALONE = 100

    def __init__(self, most: int) -> None:
        self.most = self.now = most
        self._failures = self._successes = 0

    def failed(self) -> None:
        self._failures, self._successes = self._failures + 1, 0
        if self._failures >= self._FAILURES:
            self.now, self._failures = max(1, self.now // 2), 0

    def succeeded(self) -> None:
        """One more again after as many requests as lines share one."""
        self._failures = 0
        self._grow(self.now)

    def succeeded_alone(self) -> None:
        """The same of a line that was asked alone, as failures had left no more to a request."""
        if self.now == 1:
            self._grow(self._ALONE)

    def _grow(self, after: int) -> None:
        self._successes += 1
        if self.now < self.most and self._successes >= after:
            self.now, self._successes = self.now + 1, 0
