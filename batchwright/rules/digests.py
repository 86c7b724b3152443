"""Sets of 96-bit digests at 16 to 32 bytes each, where Python's own takes over 100."""

import secrets
from array import array
from collections.abc import Iterator

_FIRST_SLOTS = 1024
_HIGH = 0xFFFF_FFFF


class Seen:
    """Tells what it was shown before.

    The hash, twice Python's own SipHash, is keyed anew for every set, so that no file can be made to collide
    on purpose.
    """

    def __init__(self) -> None:
        self._key, self._other_key = secrets.token_bytes(16), secrets.token_bytes(16)
        self._size = 0
        self._allocate(_FIRST_SLOTS)

    def __len__(self) -> int:
        return self._size

    def add(self, data: bytes) -> bool:
        """Whether it is shown for the first time."""
        return self._take(data) >= 0

    def _take(self, data: bytes) -> int:
        """The slot of `data` where it is new; else the complement of its slot, which is negative."""
        if self._size >= self._room:
            self._grow()
        low = hash(self._key + data) or 1  # 0 is a free slot
        high = hash(self._other_key + data) & _HIGH
        lows, mask = self._low, self._mask
        slot = low & mask
        while there := lows[slot]:
            if there == low and self._high[slot] == high:
                return ~slot
            slot = (slot + 1) & mask
        lows[slot], self._high[slot] = low, high
        self._size += 1
        return slot

    def _grow(self) -> None:
        for _ in self._moves():
            pass

    def _moves(self) -> Iterator[tuple[int, int]]:
        """Doubles the slots; where each digest was, and where it is now."""
        old_highs, old_lows = self._high, self._low
        self._allocate(2 * len(old_lows))
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


class Digests(Seen):
    """Numbers what it is shown in the order of first sight; 4 bytes more a slot."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers = array("I", [0]) * _FIRST_SLOTS

    def number(self, data: bytes) -> tuple[int, bool]:
        """The number of `data`, and whether it is shown for the first time."""
        slot = self._take(data)
        if slot < 0:
            return self._numbers[~slot], False
        self._numbers[slot] = self._size - 1
        return self._size - 1, True

    def _grow(self) -> None:
        numbers = array("I", [0]) * (2 * len(self._numbers))
        for place, slot in self._moves():
            numbers[slot] = self._numbers[place]
        self._numbers = numbers
