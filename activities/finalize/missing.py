"""Which lines of a batch have no result, and whose the others are: the plans say which lines there are."""

import asyncio
from array import array
from bisect import bisect_left
from typing import NamedTuple

from batchwright.contracts.ingestion import ModelShare
from batchwright.database.rows import ModelCount
from batchwright.rules import keys
from batchwright.rules.plan import ENTRY_BYTES, PlanDamaged, unpack_entries
from batchwright.storage.base import Storage

_LENGTH_BITS = 32


class Place(NamedTuple):
    offset: int
    length: int


class Missing:
    """Places in the input, ascending.

    `found` is how many planned lines have a result; `models` are the planned ones as they end, where what is
    missing has failed.
    """

    def __init__(self) -> None:
        self.found = 0
        self.models: list[ModelCount] = []
        self._packed: list[int] = []

    def __len__(self) -> int:
        return len(self._packed)

    def __getitem__(self, number: int) -> Place:
        packed = self._packed[number]
        return Place(packed >> _LENGTH_BITS, packed & (1 << _LENGTH_BITS) - 1)

    def __contains__(self, offset: int) -> bool:
        at = bisect_left(self._packed, offset << _LENGTH_BITS)
        return at < len(self._packed) and self._packed[at] >> _LENGTH_BITS == offset

    def compare(self, share: ModelShare, plan: bytes, completed: "array[int]", failed: "array[int]") -> None:
        """Adds the plan's lines that are in neither of these, which are ascending."""
        lines = successes = failures = 0
        for offset, length, _ in unpack_entries(plan):
            lines += 1
            if _has(completed, offset):
                successes += 1
            elif _has(failed, offset):
                failures += 1
            else:
                self._packed.append(offset << _LENGTH_BITS | length)
        self.found += successes + failures
        self._packed.sort()
        before = share.adopted_completed, share.adopted_failed
        count = ModelCount(
            model=share.model,
            lines=lines + sum(before),
            completed=successes + before[0],
            failed=lines - successes + before[1],
        )
        self.models.append(count)


def _has(ascending: "array[int]", offset: int) -> bool:
    at = bisect_left(ascending, offset)
    return at < len(ascending) and ascending[at] == offset


async def read_plan(storage: Storage, prefix: str, share: ModelShare) -> bytes:
    """Raises PlanDamaged where it does not have the lines that ingestion committed."""
    key = keys.plan(prefix, share.safe)
    data = await storage.get(key)
    if len(data) != share.lines * ENTRY_BYTES:
        raise PlanDamaged(f"Plan {key!r} has {len(data)} bytes; {share.lines} lines need {ENTRY_BYTES} each.")
    return data


async def find_missing(
    storage: Storage,
    prefix: str,
    models: list[ModelShare],
    completed: "array[int]",
    failed: "array[int]",
) -> Missing:
    missing = Missing()
    for share in models:
        plan = await read_plan(storage, prefix, share)
        await asyncio.to_thread(missing.compare, share, plan, completed, failed)
    return missing
