"""Measure how fast lines of a model get results while nothing slows them down except the model itself.

A tenant's rate limit would slow them down, for example. Forecasts of new batches use this rate.
"""

import math

_RATE_SECONDS = 120.0  # a measurement that is so old counts about a third as much as a new one
_SHORTEST_SECONDS = 60.0
_MEAN_DURATIONS = 3.0  # the measurement must last at least so many mean durations of a request
_PENDING_SECONDS = 3600.0  # time for which the greatest number of requests in flight counts
_BUSY_PART = 0.5


class SteadyRate:
    """The rate at which lines of a model get results when only the model itself is the limit.

    Forecasts of new batches use this rate. The measurement starts again after a period in which something
    else was the limit: no backend was available, most lines waited for a retry, or all waiting lines belonged
    to tenants or API keys with limits of their own.
    """

    def __init__(self) -> None:
        self._most_pending = 0.0
        self.reset()

    def reset(self) -> None:
        self.lines = 0.0  # lines of the recent past, in which `_seconds` passed
        self._seconds = self._measured_seconds = 0.0

    def record(self, lines: float, pending: int, passed: float, *, limited: bool) -> None:
        """Record a period in which lines were always waiting.

        Args:
            lines: how many lines got a result in this period.
            pending: number of requests in flight at the end of the period.
            passed: length of the period in seconds.
            limited: True if each waiting line belongs to a tenant with a rate limit or with a limit of
                requests in flight, or to an API key with a limit of requests in flight.
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
        """Return the rate in lines per second; None if it was measured for too short a time.

        If all requests begin at the start of the measurement, no request ends for a while. So the measurement
        must last several times as long as an average request.

        Args:
            mean_duration: mean duration of the model's requests, in seconds.
        """
        if self._measured_seconds < max(_SHORTEST_SECONDS, _MEAN_DURATIONS * mean_duration):
            return None
        return self.lines / self._seconds
