"""Measure the recent throughput of each batch, and estimate the time that its remaining lines need."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

_AVERAGING_SECONDS = 300.0


@dataclass
class _BatchProgress:
    settled: int
    at: float
    speed: float | None = None  # lines per second


class ThroughputHistory:
    """The moving average of each batch's throughput, in lines per second.

    Older measurements count less. After five minutes, the weight of a measurement is about a third.
    """

    def __init__(self) -> None:
        self._seen: dict[str, _BatchProgress] = {}

    def record(self, batch_id: str, settled: int, at: float) -> float:
        """Record that `settled` lines of a batch have a result at the time `at`.

        Return the moving average of lines per second. The first call for a batch returns 0, because a rate
        needs two measurements.

        Args:
            batch_id: id of the batch.
            settled: number of lines with a result so far.
            at: the current time, in seconds of any clock.
        """
        seen = self._seen.get(batch_id)
        if seen is None:
            self._seen[batch_id] = _BatchProgress(settled, at)
            return 0.0
        passed = at - seen.at
        if passed > 0:
            now = max(settled - seen.settled, 0) / passed
            weight = math.exp(-passed / _AVERAGING_SECONDS)
            seen.speed = now if seen.speed is None else seen.speed * weight + now * (1 - weight)
            seen.settled, seen.at = settled, at
        return seen.speed or 0.0

    def retain(self, batch_ids: Iterable[str]) -> None:
        """Delete the history of all batches except `batch_ids`."""
        kept = frozenset(batch_ids)
        self._seen = {batch_id: seen for batch_id, seen in self._seen.items() if batch_id in kept}


def remaining_seconds(*, remaining: int, settled: int, elapsed: float, speed: float) -> float:
    """Return the estimated seconds until all remaining lines of a batch have a result.

    The estimate uses the recent speed or the average speed, whichever is higher. If no line has a result yet,
    the result is `elapsed`. So a batch without any result looks late when half of the time from its
    beginning to its deadline has passed.

    Args:
        remaining: number of lines without a result.
        settled: number of lines with a result.
        elapsed: seconds since the batch began.
        speed: recent lines per second; 0 if unknown.
    """
    if remaining <= 0:
        return 0.0
    mean = settled / elapsed if elapsed > 0 else 0.0
    best = max(mean, speed)
    return remaining / best if best > 0 else elapsed
