"""Compact sets of 96-bit hashes. A hash takes 16 to 32 bytes, compared with over 100 in a Python set."""

import secrets
from array import array
from collections.abc import Iterator

_FIRST_SLOTS = 1024
_SMALL_SLOTS = 8192  # up to this number, a growing table gets eight times the slots: few hashes move twice
_HIGH = 0xFFFF_FFFF


class DigestSet:
    """A set of byte strings that stores only their hashes.

    Every set uses a new random key for its hashes, so that no client can construct inputs with equal hashes.
    """

    def __init__(self) -> None:
        self._key, self._other_key = secrets.token_bytes(16), secrets.token_bytes(16)
        self._size = 0
        self._allocate(_FIRST_SLOTS)

    def __len__(self) -> int:
        return self._size

    def add(self, data: bytes) -> bool:
        """Add `data`. Return True if it is new, False if the set already contains `data`."""
        return self._take(data) >= 0

    def hashes(self, data: bytes) -> tuple[int, int]:
        """Return two hashes of `data`: 64 bits and 32 bits.

        The hashes depend on the random key of this set, so another set returns other hashes of the same data.
        """
        low = hash(self._key + data) or 1  # 0 means a free slot
        return low, hash(self._other_key + data) & _HIGH

    def contains(self, hashes: tuple[int, int]) -> bool:
        """Return True if data with these hashes was added."""
        return self._find(hashes) < 0

    def _take(self, data: bytes) -> int:
        """Add `data` if it is new, and return the number of its slot (place in the hash table).

        If the set already contains `data` in slot N, return the negative number `~N` instead.
        """
        if self._size >= self._room:
            self._grow()
        low, high = hashes = self.hashes(data)
        slot = self._find(hashes)
        if slot < 0:
            return slot
        self._low[slot], self._high[slot] = low, high
        self._size += 1
        return slot

    def _find(self, hashes: tuple[int, int]) -> int:
        """Return the number of the free slot (place in the hash table) in which to store these hashes.

        If the set already contains the hashes in slot N, return the negative number `~N` instead.
        """
        low, high = hashes
        lows, mask = self._low, self._mask
        slot = low & mask
        while there := lows[slot]:
            if there == low and self._high[slot] == high:
                return ~slot
            slot = (slot + 1) & mask
        return slot

    def _grow(self) -> None:
        for _ in self._moves():
            pass

    def _moves(self) -> Iterator[tuple[int, int]]:
        """Grow the hash table. Yield the old and the new slot number of each hash, after the hash has moved.

        The caller must read the iterator to its end. Otherwise some hashes are lost.
        """
        old_highs, old_lows = self._high, self._low
        self._allocate(_more_than(len(old_lows)))
        highs, lows, mask = self._high, self._low, self._mask
        for place, low in enumerate(old_lows):
            if low:
                slot = low & mask
                while lows[slot]:
                    slot = (slot + 1) & mask
                lows[slot], highs[slot] = low, old_highs[place]
                yield place, slot

    def _allocate(self, slots: int) -> None:
        self._high = array("I", [0]) * slots
        self._low = array("q", [0]) * slots
        self._mask, self._room = slots - 1, slots * 3 // 4


class DigestNumbers(DigestSet):
    """A set that numbers its byte strings: 0, 1, 2 and so on, in the order of their first occurrence."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers = array("I", [0]) * _FIRST_SLOTS

    def number(self, data: bytes) -> tuple[int, bool]:
        """Return the number of `data`, and True if `data` is new. New data gets the next number."""
        slot = self._take(data)
        if slot < 0:
            return self._numbers[~slot], False
        self._numbers[slot] = self._size - 1
        return self._size - 1, True

    def _grow(self) -> None:
        numbers = array("I", [0]) * _more_than(len(self._numbers))
        for place, slot in self._moves():
            numbers[slot] = self._numbers[place]
        self._numbers = numbers


def _more_than(slots: int) -> int:
    """Return the number of slots to which a full hash table with `slots` slots grows."""
    return slots * (8 if slots <= _SMALL_SLOTS else 2)
