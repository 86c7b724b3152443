"""Rate of a model while only the model itself holds up lines: the basis of forecasts for new batches."""

import math

_RATE_SECONDS = 120.0  # a measurement that is so old counts about a third as much as a new one
_SHORTEST_SECONDS = 60.0
_MEAN_DURATIONS = 3.0  # for so many mean durations, the first requests end later than the others would
_PENDING_SECONDS = 3600.0  # for which the greatest number of requests in flight is remembered
_BUSY_PART = 0.5


class SteadyRate:
    """Measures how fast a model settles lines, without the times that say nothing about a new batch.

    Lines may also settle slowly because no backend is available, because only tenants with caps have lines
    left, or because most lines wait for a retry. A batch that begins later need not be held up by that. So
    each of these times makes the measurement begin again.
    """

    def __init__(self) -> None:
        self._most_pending = 0.0
        self.reset()

    def reset(self) -> None:
        self.lines = 0.0  # of the recent past, as `_seconds`
        self._seconds = self._measured_seconds = 0.0

    def record(self, lines: float, pending: int, passed: float, *, limited: bool) -> None:
        """Record a time during which lines always waited.

        Args:
            lines: how many lines were settled.
            pending: number of requests in flight at the end of that time.
            passed: length of that time in seconds.
            limited: True if all lines that waited are of tenants or API keys with limits of their own.
        """
        self._most_pending = max(float(pending), self._most_pending * math.exp(-passed / _PENDING_SECONDS))
        if lines <= 0 or limited or pending < _BUSY_PART * self._most_pending:
            self.reset()
            return
        decay = math.exp(-passed / _RATE_SECONDS)
        self.lines = self.lines * decay + lines
        self._seconds = self._seconds * decay + passed
        self._measured_seconds += passed

    def per_second(self, mean_duration: float) -> float | None:
        """Return the rate in lines per second, None if it was measured for too short a time.

        `mean_duration` is that of the model's requests, in seconds. The first requests all begin at once, so
        that none of them ends for a while.
        """
        if self._measured_seconds < max(_SHORTEST_SECONDS, _MEAN_DURATIONS * mean_duration):
            return None
        return self.lines / self._seconds
