"""Lines that ask the same: which they are, how they are kept, and whose answer they get.

Two lines ask the same if their model and the meaning of their bodies are the same: the order of keys and the
space between tokens do not count; numbers count as they are written.
"""

import json
from collections.abc import Iterable, Iterator
from json.encoder import encode_basestring_ascii
from typing import NamedTuple

import msgspec

from batchwright.rules.plan import PlanDamaged
from batchwright.rules.results import HEAD_BYTES, ResultDamaged, with_id

_CUSTOM_ID = b',"custom_id":"'


class Duplicate(NamedTuple):
    """A line at `offset` of the input that gets the answer of the one at `first`."""

    offset: int
    first: int
    custom_id: str


class DuplicatesDamaged(PlanDamaged):
    """The bytes are no list of duplicates."""


class _Number(str):
    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def canonical(body: bytes) -> bytes:
    """Equal of bodies that mean the same; what nests too deep counts as it stands."""
    try:
        value: object = json.loads(
            body, parse_int=_Number, parse_float=_Number, object_pairs_hook=_sorted_pairs
        )
        return repr(value).encode()
    except RecursionError:
        return body


def _sorted_pairs(pairs: list[tuple[str, object]]) -> tuple[tuple[str, object], ...]:
    return tuple(sorted(pairs, key=_name))


def _name(pair: tuple[str, object]) -> str:
    return pair[0]


_DECODER = msgspec.json.Decoder(tuple[int, int, str])


def packed(duplicates: Iterable[Duplicate]) -> bytes:
    """As lines of JSON."""
    return b"".join(msgspec.json.encode(one) + b"\n" for one in duplicates)


def unpacked(lines: Iterable[bytes]) -> Iterator[Duplicate]:
    """Raises DuplicatesDamaged."""
    for line in lines:
        try:
            yield Duplicate(*_DECODER.decode(line))
        except msgspec.MsgspecError as error:
            raise DuplicatesDamaged(f"{line[:80]!r} is no duplicate: {error}") from error


def retold(line: bytes, request_id: str, custom_id: str) -> bytes:
    """The result of another line under this one's ids, the answer byte for byte. Raises ResultDamaged."""
    start = HEAD_BYTES + len(_CUSTOM_ID)
    if line[HEAD_BYTES:start] != _CUSTOM_ID:
        raise ResultDamaged(f"a line of results begins with {line[:start]!r}")
    end = _end_of_text(line, start)
    name = encode_basestring_ascii(custom_id).encode()
    return with_id(line[:HEAD_BYTES], request_id) + _CUSTOM_ID[:-1] + name + line[end:]


def _end_of_text(line: bytes, start: int) -> int:
    """Behind the quote that ends the JSON string whose first character is at `start`."""
    at = start
    while (at := line.find(b'"', at)) >= 0:
        escapes = at
        while line[escapes - 1 : escapes] == b"\\":
            escapes -= 1
        if (at - escapes) % 2 == 0:
            return at + 1
        at += 1
    raise ResultDamaged(f"a line of results begins with {line[: start + 40]!r}")
