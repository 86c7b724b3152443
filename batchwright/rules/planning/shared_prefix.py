"""Divide the prompt of a request into the prefix that similar requests share, and the rest.

The prefix is the system messages and tools. Backends cache it, so lines with the same prefix are sent one
after the other. Texts are compared as the JSON bytes of the line. The comparison affects only the order of
lines, never a result.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter

import msgspec
from fnv_hash_fast import fnv1a_32
from msgspec import UNSET, Raw, Struct

from batchwright.rules.input.line_parser import DECODE_ERRORS, PromptFields, read_text

_SYSTEM = (Raw(b'"system"'), Raw(b'"developer"'))
_LIST = ord("[")
_NONE = Raw(b"")
# Longer conversations are not parsed, because their objects would take more memory than their bytes.
_MAX_MESSAGES = 10_000
_FEW_OBJECTS = 64
_HELD_BYTES = 4 * 1024 * 1024  # memory limit for all texts that are compared at once
_MIN_READ_BYTES = 64
COMPARED_BYTES = 64 * 1024  # texts that are equal up to this length count as equal


class Prompt(Struct, frozen=True, gc=False):
    """A prompt, divided into the parts that backends cache (system messages and tools), and the rest.

    Attributes:
        system: the system and developer messages at the start of a chat, or the field `instructions` or
            `system` of the body.
        tools: the definitions of tools.
        rest: everything else.
    """

    system: tuple[bytes, ...]
    tools: bytes
    rest: bytes

    @property
    def shared(self) -> bytes:
        """The prefix that similar requests share, as bytes: system messages and tools."""
        return b"\x00".join(self.system) + b"\x01" + self.tools


class _ChatMessage(Struct, gc=False):
    role: Raw = _NONE
    content: Raw = _NONE


_CHAT_MESSAGES = msgspec.json.Decoder(list[_ChatMessage])


def prompt_of(body: PromptFields, max_bytes: int = sys.maxsize) -> Prompt:
    """Return the prompt in a request's body, divided into system messages, tools and the rest.

    If a part of the prompt has an unknown form, it becomes part of `rest`.

    Args:
        body: body of the request.
        max_bytes: number of bytes of `rest` that the caller needs. If `rest` is longer, it may be cut after
            this number of bytes.
    """
    text = body.messages
    if text is UNSET:
        text = body.prompt if body.input is UNSET else body.input
    if text is UNSET:  # score and rerank: use the field that engines put first in the prompt
        text = body.text_1 if body.query is UNSET else body.query
    system: tuple[bytes, ...] = ()
    if body.instructions is not UNSET or body.system is not UNSET:
        system = tuple(bytes(text) for text in (body.instructions, body.system) if text is not UNSET)
    tools = b"" if body.tools is UNSET else bytes(body.tools)
    if text is UNSET:
        return Prompt(system, tools, b"")
    messages = _chat_messages(text)
    if messages is None:
        return Prompt(system, tools, bytes(memoryview(text)[:max_bytes]))
    first = 0
    for message in messages:
        if message.role not in _SYSTEM:
            break
        system = (*system, bytes(message.content))
        first += 1
    return Prompt(system, tools, _rest(messages, first, max_bytes))


def _rest(messages: list[_ChatMessage], first: int, max_bytes: int) -> bytes:
    if first < len(messages):
        start = memoryview(messages[first].content)[:max_bytes]
        if len(start) == max_bytes:
            return bytes(start)
    return b"\x00".join([bytes(message.content) + bytes(message.role) for message in messages[first:]])


def _chat_messages(text: Raw) -> list[_ChatMessage] | None:
    view = memoryview(text)
    if view[0] != _LIST or (len(view) > _MAX_MESSAGES and _has_many_objects(bytes(view))):
        return None
    try:
        return _CHAT_MESSAGES.decode(text)
    except DECODE_ERRORS:
        return None


def _has_many_objects(text: bytes) -> bool:
    """Return True if a text may contain so many objects that parsing it would take too much memory."""
    at = -1
    for _ in range(_FEW_OBJECTS):
        at = text.find(b"{", at + 1)
        if at < 0:
            return False
    return text.count(b"{", at) > _MAX_MESSAGES - _FEW_OBJECTS + 1


def system_hash(prompt: Prompt) -> int:
    """Return the FNV-32a hash of the system prompt's text; 0 if there is no system prompt."""
    if not prompt.system:
        return 0
    return fnv1a_32(b"".join(_plain(content) for content in prompt.system))


def _plain(content: bytes) -> bytes:
    """Return the content of a message as text: a JSON string is decoded, other JSON stays unchanged."""
    text = read_text(Raw(content)) if content.startswith(b'"') else None
    return content if text is None else text.encode()


def lexicographic_order(
    members: Sequence[int], read: Callable[[int, int, int], bytes], start: int = 0
) -> Iterator[int]:
    """Yield `members`, sorted by their texts from byte `start` on. Equal texts are sorted by their number.

    Texts are read in parts to limit memory. If the first COMPARED_BYTES bytes of two texts are equal, the
    texts count as equal.

    Args:
        members: numbers of the texts to sort.
        read: called with the number of a text, a start position in bytes, and a number of bytes. It returns
            this part of the text.
        start: bytes before this position are not compared.
    """
    waiting = [(members, start)]
    while waiting:
        equal, at = waiting.pop()
        if len(equal) < 2 or at >= COMPARED_BYTES:
            yield from equal
            continue
        width = max(_MIN_READ_BYTES, _HELD_BYTES // len(equal))
        heads = sorted((read(member, at, width), member) for member in equal)
        runs = [(head, [member for _, member in run]) for head, run in groupby(heads, key=itemgetter(0))]
        heads.clear()
        ends = ((run, at + width if len(head) == width else COMPARED_BYTES) for head, run in reversed(runs))
        waiting.extend(ends)
