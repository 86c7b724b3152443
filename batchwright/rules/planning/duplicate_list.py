"""Encode and decode the stored list of duplicates: lines whose request equals that of an earlier line.

`equal_requests.py` decides which requests are equal.
"""

import json
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from batchwright.rules.json_text import replace_lone_surrogates
from batchwright.rules.planning.plan_format import PlanDamaged


class Duplicate(NamedTuple):
    """A line that is not sent, because it has the same request as an earlier line.

    It gets the result of the earlier line.

    Attributes:
        offset: position of this line in the input, in bytes.
        first: position of the earlier line in the input, in bytes.
    """

    offset: int
    first: int
    custom_id: str


class DuplicatesDamaged(PlanDamaged):
    """Raised if a stored list of duplicates cannot be read. A retry does not help."""


_DECODER = msgspec.json.Decoder(tuple[int, int, str])


def encode_duplicates(duplicates: Iterable[Duplicate]) -> bytes:
    """Encode duplicates for storage, one line of JSON each."""
    return b"".join(_encode_duplicate(one) + b"\n" for one in duplicates)


def _encode_duplicate(one: Duplicate) -> bytes:
    try:
        return msgspec.json.encode(one)
    except UnicodeEncodeError:  # a lone surrogate
        return json.dumps(one).encode()


def decode_duplicates(lines: Iterable[bytes]) -> Iterator[Duplicate]:
    """Decode a stored list of duplicates, lines that are not sent.

    Raises:
        DuplicatesDamaged: a line of the list is not the record of a duplicate.
    """
    for line in lines:
        try:
            yield _decode_duplicate(line)
        except (msgspec.MsgspecError, ValueError) as error:
            raise DuplicatesDamaged(f"{line[:80]!r} is no duplicate: {error}") from error


def _decode_duplicate(line: bytes) -> Duplicate:
    try:
        return Duplicate(*_DECODER.decode(line))
    except msgspec.DecodeError:
        if replace_lone_surrogates(line) is line:
            raise
        return Duplicate(*msgspec.convert(json.loads(line), tuple[int, int, str]))
