"""Sets of 96-bit digests at 16 to 32 bytes each, where Python's own takes over 100."""

import hashlib
import secrets
import struct
from array import array
from collections.abc import Iterator

_HALVES = struct.Struct("<IQ")
_FIRST_SLOTS = 1024


class Seen:
    """Tells what it was shown before.

    The hash is keyed anew for every set, so that no file can be made to collide on purpose.
    """

    def __init__(self) -> None:
        self._hasher = hashlib.blake2b(key=secrets.token_bytes(16), digest_size=_HALVES.size)
        self._size = 0
        self._allocate(_FIRST_SLOTS)

    def __len__(self) -> int:
        return self._size

    def add(self, data: bytes) -> bool:
        """Whether it is shown for the first time."""
        return self._take(data)[1]

    def _take(self, data: bytes) -> tuple[int, bool]:
        """The slot of `data`, and whether it is new there."""
        if 4 * self._size >= 3 * len(self._low):
            self._grow()
        hasher = self._hasher.copy()
        hasher.update(data)
        high, low = _HALVES.unpack(hasher.digest())
        low = low or 1  # 0 is a free slot
        slot = self._slot(high, low)
        if self._low[slot]:
            return slot, False
        self._high[slot], self._low[slot] = high, low
        self._size += 1
        return slot, True

    def _slot(self, high: int, low: int) -> int:
        """Where the digest is, or where it belongs."""
        lows = self._low
        mask = len(lows) - 1
        slot = low & mask
        while (there := lows[slot]) and (there != low or self._high[slot] != high):
            slot = (slot + 1) & mask
        return slot

    def _grow(self) -> None:
        for _ in self._moves():
            pass

    def _moves(self) -> Iterator[tuple[int, int]]:
        """Doubles the slots; where each digest was, and where it is now."""
        highs, lows = self._high, self._low
        self._allocate(2 * len(lows))
        for place, low in enumerate(lows):
            if low:
                high = highs[place]
                slot = self._slot(high, low)
                self._high[slot], self._low[slot] = high, low
                yield place, slot

    def _allocate(self, slots: int) -> None:
        self._high = array("I", [0]) * slots
        self._low = array("Q", [0]) * slots


class Digests(Seen):
    """Numbers what it is shown in the order of first sight; 4 bytes more a slot."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers = array("I", [0]) * _FIRST_SLOTS

    def number(self, data: bytes) -> tuple[int, bool]:
        """The number of `data`, and whether it is shown for the first time."""
        slot, new = self._take(data)
        if new:
            self._numbers[slot] = self._size - 1
        return self._numbers[slot], new

    def _grow(self) -> None:
        numbers = array("I", [0]) * (2 * len(self._numbers))
        for place, slot in self._moves():
            numbers[slot] = self._numbers[place]
        self._numbers = numbers
