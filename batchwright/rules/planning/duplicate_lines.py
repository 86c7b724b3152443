"""Find duplicates: lines whose request equals the request of an earlier line.

A duplicate is not sent. It gets a copy of the earlier line's result. Requests are equal if they have the same
model and bodies with the same meaning. The order of the fields and white space do not matter. Numbers must be
written in the same way.
"""

import json
from collections.abc import Iterable, Iterator
from json.encoder import encode_basestring_ascii
from operator import itemgetter
from typing import NamedTuple

import msgspec

from batchwright.rules.json_text import replace_lone_surrogates
from batchwright.rules.planning.plan_format import PlanDamaged
from batchwright.rules.results.output_lines import HEAD_BYTES, ResultDamaged, with_id

_CUSTOM_ID = b',"custom_id":"'


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


class _Number(str):
    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def canonical_body(body: bytes) -> bytes:
    """Return a JSON body in a normal form, so that bodies with the same meaning can be compared as bytes.

    A body that is nested too deeply is returned unchanged.
    """
    try:
        value: object = json.loads(
            body,
            parse_int=_Number,
            parse_float=_Number,
            object_pairs_hook=lambda pairs: tuple(sorted(pairs, key=itemgetter(0))),
        )
        return repr(value).encode()
    except RecursionError:
        return body


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


def copy_result(line: bytes, request_id: str, custom_id: str) -> bytes:
    """Return the result line of a duplicate: a copy of the earlier line's result with the duplicate's ids.

    Args:
        line: line of the output or error file for the earlier request.
        request_id: `batch_req_...` id of the duplicate.
        custom_id: `custom_id` of the duplicate.

    Raises:
        ResultDamaged: `line` is not a result line.
    """
    start = HEAD_BYTES + len(_CUSTOM_ID)
    if line[HEAD_BYTES:start] != _CUSTOM_ID:
        raise ResultDamaged(f"a line of results begins with {line[:start]!r}")
    end = _end_of_text(line, start)
    name = encode_basestring_ascii(custom_id).encode()
    return with_id(line[:HEAD_BYTES], request_id) + _CUSTOM_ID[:-1] + name + line[end:]


def _end_of_text(line: bytes, start: int) -> int:
    """Return the position after the closing quote of a JSON string in `line`.

    Args:
        start: position after the opening quote of the string.

    Raises:
        ResultDamaged: the string has no end.
    """
    at = start
    while (at := line.find(b'"', at)) >= 0:
        escapes = at
        while line[escapes - 1 : escapes] == b"\\":
            escapes -= 1
        if (at - escapes) % 2 == 0:
            return at + 1
        at += 1
    raise ResultDamaged(f"a line of results begins with {line[: start + 40]!r}")
