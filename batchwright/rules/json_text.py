"""Functions for JSON as text: lone surrogates, storable text, the members of an object, repeated keys.

JSON can contain NUL characters and lone surrogates (halves of a UTF-16 pair). PostgreSQL can store neither of
them, and msgspec rejects lone surrogates.

The regular expressions that find the members (keys and values) of an object never backtrack: they use only
possessive repetitions, such as `*+`. With backtracking, a match would need a hundred times the memory of the
matched string.
"""

import json
import re
from collections.abc import Iterator, Sequence
from itertools import accumulate
from operator import add
from typing import NamedTuple

import msgspec

REPLACEMENT = "\ufffd"
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_REPLACED = dict.fromkeys([0, *range(0xD800, 0xE000)], REPLACEMENT)
# An escaped NUL. An even number of backslashes before it are escaped backslashes.
_NUL_ESCAPE = re.compile(r"(?<!\\)((?:\\\\)*+)\\u0000")
# Escapes of lone surrogates, and the text up to the next one.
_HALF = re.compile(rb"(?:\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|\\u[dD][c-fC-F][0-9a-fA-F]{2})++")
_WHOLE = re.compile(
    rb"(?:[^\\]++|\\[^u]|\\u(?![dD][89a-fA-F])|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})*+",
    re.DOTALL,
)
_ESCAPE_BYTES = 6
# All parsers of all Python versions accept this many levels, wherever they are called.
MAX_NESTING = 500
# Opening brackets as 1 and closing brackets as 0, so that one byte holds eight brackets.
_BRACKETS = bytes.maketrans(b"[{]}", b"1100")
_NOT_NESTING = bytes(set(range(256)) - set(b'"[{]}'))
_STEPS = [list(accumulate(1 if bit == "1" else -1 for bit in f"{byte:08b}")) for byte in range(256)]
_GAIN = [steps[-1] for steps in _STEPS]  # levels after eight brackets, compared with before
_PEAK = [max(steps) for steps in _STEPS]  # the most levels within eight brackets, compared with before
_SLICE = 64 * 1024
_RAW = msgspec.json.Decoder(msgspec.Raw)


class NestedTooDeeply(RecursionError):
    """Raised if a JSON text nests arrays and objects more levels deep than is allowed."""


def storable(text: str) -> str:
    """Return `text` with U+FFFD in place of each character that PostgreSQL cannot store."""
    return text.translate(_REPLACED) if _UNSTORABLE.search(text) else text


def storable_json(text: str) -> str:
    """Return the JSON `text` with U+FFFD in place of each NUL, which a `jsonb` column cannot store."""
    return _NUL_ESCAPE.sub(r"\1\\ufffd", text) if r"\u0000" in text else text


def replace_lone_surrogates(body: bytes) -> bytes:
    """Return the JSON text with U+FFFD in place of each lone surrogate.

    The result has the same length as `body`. If there is no lone surrogate, the same object `body` is
    returned. Use the result only for reading. Send and store `body` itself.
    """
    if b"\\u" not in body:
        return body
    pieces: list[bytes] = []
    at = 0
    while True:
        whole = _WHOLE.match(body, at)
        end = whole.end() if whole else at
        half = _HALF.match(body, end)
        if half is None:
            return b"".join([*pieces, body[at:]]) if pieces else body
        count = (half.end() - end) // _ESCAPE_BYTES
        pieces += [body[at:end], rb"\ufffd" * count]
        at = half.end()


# The end of the text also ends a string. Otherwise every quote of an unterminated string would be tried.
_STRING = rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)'
_MEMBER_NAME = re.compile(rb"[\s,]*+(" + _STRING + rb")\s*+:\s*+", re.DOTALL)
_TO_BRACKET = re.compile(rb'(?:[^"{}\[\]]++|' + _STRING + rb")*+[{}\[\]]", re.DOTALL)
_SCALAR = re.compile(_STRING + rb"|[^\s,}\]]*+", re.DOTALL)
_OPEN = b"{["


class JsonMember(NamedTuple):
    """A member (key and value) of a JSON object.

    Attributes:
        name: the key as written, with quotes.
        start: position of the value's first byte.
        end: position after the value's last byte.
    """

    name: bytes
    start: int
    end: int


def object_members(text: bytes) -> Iterator[JsonMember]:
    """Yield the members (keys and values) of a JSON object.

    If `text` is not an object, nothing is yielded. If it is not valid JSON, the iteration ends at the error.
    Time and memory are proportional to the number of members.
    """
    at = len(text) - len(text.lstrip())
    if text[at : at + 1] != b"{":
        return
    at += 1
    while (key := _MEMBER_NAME.match(text, at)) is not None:
        start = key.end()
        at = _end_of_value(text, start)
        yield JsonMember(key[1], start, at)


def member_name(member: JsonMember) -> str:
    """Return the key of a member with its escapes decoded."""
    written = member.name
    if b"\\" in written:
        return str(json.loads(written, strict=False))
    return written[1:-1].decode("utf-8", "surrogateescape")


def _end_of_value(text: bytes, start: int) -> int:
    if text[start : start + 1] not in (b"{", b"["):
        found = _SCALAR.match(text, start)
        return found.end() if found else start
    depth, at = 0, start
    while (bracket := _TO_BRACKET.match(text, at)) is not None:
        at = bracket.end()
        depth += 1 if text[at - 1] in _OPEN else -1
        if depth == 0:
            return at
    return len(text)


class RepeatedKey(ValueError):
    """Raised if a JSON object has the same key twice. The message names the key and the remedy."""


def unique_keys(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    """Build the dict of a JSON object, and reject repeated keys.

    Use this as `object_pairs_hook` of `json.loads`.

    Raises:
        RepeatedKey: a key occurs twice.
    """
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise RepeatedKey(f"it has the key {name!r} twice: remove one of them")
            seen.add(name)
    return found


def check_unique_keys(text: bytes) -> None:
    """Check that no object in a JSON text has the same key twice. The text must be valid JSON.

    Raises:
        RepeatedKey: an object has the same key twice.
        RecursionError: the text is nested too deeply.
    """
    # Numbers stay text, because the other parser has checked them, and Python rejects very long numbers.
    json.loads(text, object_pairs_hook=unique_keys, parse_int=str, parse_float=str)


def check_nesting(text: bytes, max_depth: int = MAX_NESTING) -> None:
    """Check how deeply a JSON text nests arrays and objects, before it is parsed.

    Text that is not JSON may pass this check. The parser rejects it later.

    Raises:
        NestedTooDeeply: arrays and objects are nested more than `max_depth` levels deep.
    """
    if len(text) <= 2 * max_depth:
        return
    # Almost all texts have few brackets. `replace` searches faster than `count`, and stops early.
    size, few = len(text), max_depth // 4
    if size - len(text.replace(b"[", b"", few)) < few and size - len(text.replace(b"{", b"", few)) < few:
        return
    unescaped = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    # Two quotes side by side are an empty string, or an end and a start of strings with brackets.
    brackets = _outside_strings(unescaped.translate(_BRACKETS, _NOT_NESTING).replace(b'""', b""))
    if len(brackets) > max_depth and _depth(brackets) > max_depth:
        raise NestedTooDeeply(f"arrays and objects are nested more than {max_depth} levels deep")


def _outside_strings(text: bytes) -> bytes:
    """Return the bytes of a JSON text that are not in strings. The text must contain no escapes.

    To save memory, at most 64 KiB of the text are split into strings at once.
    """
    if b'"' not in text:
        return text
    outside, is_inside = bytearray(), False
    for start in range(0, len(text), _SLICE):
        pieces = text[start : start + _SLICE].split(b'"')
        outside += b"".join(pieces[is_inside::2])
        is_inside ^= len(pieces) % 2 == 0
    return bytes(outside)


def _depth(brackets: bytes) -> int:
    """Return how many levels deep brackets are nested.

    In `brackets`, `1` is an opening bracket, and `0` is a closing bracket. To save time, eight brackets are
    counted in one step.
    """
    size = -(-len(brackets) // 8)
    eights = int(brackets.ljust(8 * size, b"0"), 2).to_bytes(size)
    before = accumulate(map(_GAIN.__getitem__, eights), initial=0)
    return max(map(add, before, map(_PEAK.__getitem__, eights)))


def is_json(body: bytes) -> bool:
    """Return True if `body` is one JSON value in UTF-8, nested at most MAX_NESTING levels deep.

    Escapes of lone surrogates are allowed.
    """
    try:
        body.decode()
        return _is_strict_json(body) or (b"\\u" in body and _is_strict_json(replace_lone_surrogates(body)))
    except UnicodeDecodeError:
        return False


def _is_strict_json(body: bytes) -> bool:
    try:
        check_nesting(body)
        _RAW.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True
