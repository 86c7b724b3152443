"""Whether a batch will be done in time, from what has settled so far."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

_MEMORY_SECONDS = 300.0


@dataclass
class _Seen:
    settled: int
    at: float
    speed: float | None = None  # lines a second


class Speeds:
    """How fast batches settled lines lately: a mean in which what is five minutes old weighs a third."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}

    def look(self, batch_id: str, settled: int, at: float) -> float:
        """Lines a second up to `at`, in seconds of any clock; 0 at the first look."""
        seen = self._seen.get(batch_id)
        if seen is None:
            self._seen[batch_id] = _Seen(settled, at)
            return 0.0
        passed = at - seen.at
        if passed > 0:
            now = max(settled - seen.settled, 0) / passed
            weight = math.exp(-passed / _MEMORY_SECONDS)
            seen.speed = now if seen.speed is None else seen.speed * weight + now * (1 - weight)
            seen.settled, seen.at = settled, at
        return seen.speed or 0.0

    def keep(self, batch_ids: Iterable[str]) -> None:
        """Forgets all other batches."""
        kept = frozenset(batch_ids)
        self._seen = {batch_id: seen for batch_id, seen in self._seen.items() if batch_id in kept}


def remaining_seconds(*, left: int, settled: int, elapsed: float, speed: float) -> float:
    """An estimate for the lines left, at the speed of late or of the whole time, whichever is better.

    A batch without any result is taken to need as long again as it has waited: so it is seen to be late once
    half of its window is over.
    """
    if left <= 0:
        return 0.0
    mean = settled / elapsed if elapsed > 0 else 0.0
    best = max(mean, speed)
    return left / best if best > 0 else elapsed
