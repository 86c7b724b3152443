"""The prompt of a request, as prefix caches see it: what many requests share comes first (R17).

Texts are compared as the JSON bytes of the line; only the order depends on them, never an answer.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter

import msgspec
from fnv_hash_fast import fnv1a_32
from msgspec import UNSET, Raw, Struct

from batchwright.rules.lines import UNREADABLE, Prompting, read_text

_SYSTEM = (Raw(b'"system"'), Raw(b'"developer"'))
_LIST = ord("[")
_NONE = Raw(b"")
_MAX_TURNS = 10_000  # beyond it a conversation is not taken apart: its objects would outweigh its bytes
_FEW_OBJECTS = 64
_HELD = 4 * 1024 * 1024  # bytes of texts compared at once
_LEAST = 64
COMPARED = 64 * 1024  # texts equal up to here count as equal


class Prompt(Struct, frozen=True, gc=False):
    """`system` holds the contents of the leading system and developer messages, or the instructions."""

    system: tuple[bytes, ...]
    tools: bytes
    rest: bytes

    @property
    def shared(self) -> bytes:
        """What requests of one kind have in common; joins are unique: JSON holds no control characters."""
        return b"\x00".join(self.system) + b"\x01" + self.tools


class _Turn(Struct, gc=False):
    role: Raw = _NONE
    content: Raw = _NONE


_TURNS = msgspec.json.Decoder(list[_Turn])


def prompt_of(body: Prompting, most: int = sys.maxsize) -> Prompt:
    """The prompt of any endpoint's body; a body of unknown shape is all `rest`.

    `most`: how many bytes of the rest are needed; what comes behind them may be left out.
    """
    text = body.messages
    if text is UNSET:
        text = body.prompt if body.input is UNSET else body.input
    system = () if body.instructions is UNSET else (bytes(body.instructions),)
    tools = b"" if body.tools is UNSET else bytes(body.tools)
    if text is UNSET:
        return Prompt(system, tools, b"")
    turns = _turns(text)
    if turns is None:
        return Prompt(system, tools, bytes(memoryview(text)[:most]))
    first = 0
    for turn in turns:
        if turn.role not in _SYSTEM:
            break
        system = (*system, bytes(turn.content))
        first += 1
    return Prompt(system, tools, _rest(turns, first, most))


def _rest(turns: list[_Turn], first: int, most: int) -> bytes:
    if first < len(turns):
        start = memoryview(turns[first].content)[:most]
        if len(start) == most:
            return bytes(start)
    return b"\x00".join([bytes(turn.content) + bytes(turn.role) for turn in turns[first:]])


def _turns(text: Raw) -> list[_Turn] | None:
    view = memoryview(text)
    if view[0] != _LIST or (len(view) > _MAX_TURNS and _has_many_objects(bytes(view))):
        return None
    try:
        return _TURNS.decode(text)
    except UNREADABLE:
        return None


def _has_many_objects(text: bytes) -> bool:
    """Whether more than _MAX_TURNS; nearly all texts have few, between which finding beats counting."""
    at = -1
    for _ in range(_FEW_OBJECTS):
        at = text.find(b"{", at + 1)
        if at < 0:
            return False
    return text.count(b"{", at) > _MAX_TURNS - _FEW_OBJECTS + 1


def system_hash(prompt: Prompt) -> int:
    """FNV-32a of the system prompt's text (S0-17, S0-18); 0 without one."""
    if not prompt.system:
        return 0
    return fnv1a_32(b"".join(_plain(content) for content in prompt.system))


def _plain(content: bytes) -> bytes:
    """A string's text; a list of parts stays as it is written."""
    text = read_text(Raw(content)) if content.startswith(b'"') else None
    return content if text is None else text.encode()


def lexicographic(
    members: Sequence[int], read: Callable[[int, int, int], bytes], start: int = 0
) -> Iterator[int]:
    """`members` by their texts from `start` on, equal ones by themselves.

    `read(member, start, width)` gives a part of a member's text. Only as much of each is held at a time as
    all of them together may take; those still equal are read on.
    """
    waiting = [(members, start)]
    while waiting:
        equal, at = waiting.pop()
        if len(equal) < 2 or at >= COMPARED:
            yield from equal
            continue
        width = max(_LEAST, _HELD // len(equal))
        heads = sorted((read(member, at, width), member) for member in equal)
        runs = [(head, [member for _, member in run]) for head, run in groupby(heads, key=itemgetter(0))]
        heads.clear()
        ends = ((run, at + width if len(head) == width else COMPARED) for head, run in reversed(runs))
        waiting.extend(ends)
