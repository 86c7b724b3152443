"""Where a prompt parts from the first one of its kind, as bytes that sort as the prompts do.

Prompts made from a template begin alike for long: their first bytes do not tell which goes first. Each is
noted by how far it goes with the first of its prefix, on which side it leaves that, and what follows there.
"""

import struct

HEAD = 32  # bytes of a note
_CODE = struct.Struct(">H")
_FOLLOWING = HEAD - _CODE.size
_WINDOWS = ((0, 64), (64, 1024))  # compared one after the other: most part early
_FAR = _WINDOWS[-1][1]  # who goes so far with the first is told apart behind it
_WITH_IT = 0x8000
_ABOVE = 0xFFFF
_KNOWN = (
    4096  # prefixes whose first is remembered, in some megabytes; of others a note is the text's own head
)
NEEDED = _FAR + _FOLLOWING  # bytes of a text that its note depends on


class Beginnings:
    """Notes of texts by prefix; those of one prefix can be compared, ended by zeros where the text ends."""

    def __init__(self) -> None:
        self._firsts: list[bytes] = []

    def note(self, prefix: int, text: bytes) -> bytes:
        """HEAD bytes. `prefix` counts from 0 in the order of first sight; `text` without zeros."""
        firsts = self._firsts
        if prefix == len(firsts) < _KNOWN:
            firsts.append(text[:_FAR])
        if prefix >= len(firsts):
            return _CODE.pack(0) + text[:_FOLLOWING]
        first = firsts[prefix]
        for start, end in _WINDOWS:
            ours, its = text[start:end], first[start:end]
            if ours != its:
                common = start + _common(ours, its, end - start)
                code = common if ours < its else _ABOVE - common
                return _CODE.pack(code) + text[common : common + _FOLLOWING]
        return _CODE.pack(_WITH_IT) + text[_FAR:NEEDED]


def told(note: bytes | bytearray) -> int:
    """How many bytes from its beginning the texts of this note have in common."""
    (code,) = _CODE.unpack_from(note)
    if code == _WITH_IT:
        return NEEDED
    return _FOLLOWING + (code if code < _WITH_IT else _ABOVE - code)


def _common(one: bytes, other: bytes, width: int) -> int:
    """How far two different texts of at most `width` bytes go together, ended by zeros."""
    differing = int.from_bytes(one.ljust(width, b"\0")) ^ int.from_bytes(other.ljust(width, b"\0"))
    return width - (differing.bit_length() + 7) // 8
