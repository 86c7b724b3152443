"""Sort keys of at most 32 bytes, which sort prompts in the order of their texts.

Prompts from the same template begin with the same bytes, so the first 32 bytes of a prompt would be a useless
key. Therefore each key compares its prompt with a reference: the first prompt in the input with the same
prefix (system messages and tools). The key encodes three things: how many leading bytes prompt and reference
have in common, whether the prompt sorts before or after the reference, and the prompt's bytes after the
common bytes.
"""

import struct

SORT_KEY_BYTES = 32
_CODE = struct.Struct(">H")
_FOLLOWING = SORT_KEY_BYTES - _CODE.size
_WINDOWS = ((0, 64), (64, 1024))  # compared one after the other, because most prompts differ early
_COMPARED = _WINDOWS[-1][1]  # prompts that are equal up to this length are sorted by the bytes after it
_EQUAL = 0x8000
_ABOVE = 0xFFFF
# Number of prefixes whose first prompt is stored, in a few megabytes. For other prefixes, the key is the
# beginning of the text itself.
_MAX_PREFIXES = 4096
NEEDED_TEXT_BYTES = _COMPARED + _FOLLOWING  # number of leading bytes of a text on which its key depends


class PromptSortKeys:
    """A maker of sort keys: short bytes by which prompts with the same prefix are sorted.

    The prefix of a prompt is its system messages and tools. Keys can be compared only if their prompts have
    the same prefix. A key may be shorter than SORT_KEY_BYTES. The caller must then append zero bytes up to
    this length.
    """

    def __init__(self) -> None:
        self._firsts: list[bytes] = []

    def key(self, prefix: int, text: bytes) -> bytes:
        """Return the sort key of a prompt: at most SORT_KEY_BYTES bytes that sort like the prompt's text.

        Args:
            prefix: number of the prompt's prefix (system messages and tools): 0 for the first prefix that
                occurs, 1 for the next new prefix, and so on.
            text: the part of the prompt after its prefix. It must not contain zero bytes.
        """
        firsts = self._firsts
        if prefix == len(firsts) < _MAX_PREFIXES:
            firsts.append(text[:_COMPARED])
        if prefix >= len(firsts):
            return _CODE.pack(0) + text[:_FOLLOWING]
        first = firsts[prefix]
        for start, end in _WINDOWS:
            own, other = text[start:end], first[start:end]
            if own != other:
                common = start + _common_length(own, other, end - start)
                code = common if own < other else _ABOVE - common
                return _CODE.pack(code) + text[common : common + _FOLLOWING]
        return _CODE.pack(_EQUAL) + text[_COMPARED:NEEDED_TEXT_BYTES]


def covered_bytes(key: bytes | bytearray) -> int:
    """Return how many leading bytes of two texts are certainly equal if the texts have the same sort key.

    A text is the part of a prompt after its prefix (system messages and tools). Both prompts must have the
    same prefix.

    Args:
        key: sort key of both texts.
    """
    return _FOLLOWING + common_with_first(key)


def common_with_first(key: bytes | bytearray) -> int:
    """Return how many leading bytes a text has in common with a reference text. The result is at most 1,024.

    The text is the part of a prompt after its prefix (system messages and tools). The reference is the text
    of the first prompt in the input that has the same prefix.

    Args:
        key: sort key of the text.
    """
    (code,) = _CODE.unpack_from(key)
    if code == _EQUAL:
        return _COMPARED
    return code if code < _EQUAL else _ABOVE - code


def common_bytes(one: bytes | bytearray, other: bytes | bytearray) -> int:
    """Return how many leading bytes two texts have in common, computed from their sort keys.

    Each text is the part of a prompt after its prefix (system messages and tools). Both prompts must have the
    same prefix. If the keys are equal, the texts may have more bytes in common than the result.

    Args:
        one: sort key of the first text.
        other: sort key of the second text.
    """
    common = common_with_first(one)
    if one[: _CODE.size] != other[: _CODE.size]:
        return min(common, common_with_first(other))
    return common + _common_length(one[_CODE.size :], other[_CODE.size :], _FOLLOWING)


def keys_with_in_common(count: int) -> tuple[bytes, bytes]:
    """Return the lowest and the highest sort key of the texts that can be similar to another text.

    Two texts are similar if their sort keys differ and their first `count` bytes are equal. Most sort keys
    are outside of the returned range. For the texts with these keys, the slower `common_bytes` need not be
    called.
    """
    code = max(count - _FOLLOWING, 0)
    return _CODE.pack(code), _CODE.pack(_ABOVE - code) + b"\xff" * _FOLLOWING


def _common_length(one: bytes | bytearray, other: bytes | bytearray, width: int) -> int:
    """Return how many leading bytes two different texts have in common.

    Args:
        one: the first text.
        other: the second text.
        width: both texts have at most this many bytes.
    """
    differing = int.from_bytes(one.ljust(width, b"\0")) ^ int.from_bytes(other.ljust(width, b"\0"))
    return width - (differing.bit_length() + 7) // 8
