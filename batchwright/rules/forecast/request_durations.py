"""Estimate durations of a model's requests, and the time until all requests in flight have ended."""

import math
from functools import lru_cache
from statistics import NormalDist
from typing import Protocol

from batchwright.rules.worker_stats import UpstreamTraffic

_AVERAGING_SECONDS = 600.0  # a request that ended this long ago counts about a third as much as a new one
_PRIOR_REQUESTS = 100.0
_MOST_REQUESTS = 1000.0  # maximum weight of the requests before the first record
_NORMAL = NormalDist()


class Spread(Protocol):
    """An object with the mean of request durations, and with how much the durations differ.

    `mean` is in seconds. `variation` is the variance of the durations, divided by the square of their mean.
    """

    @property
    def mean(self) -> float: ...

    @property
    def variation(self) -> float: ...


class RequestDurations(Spread):
    """An estimate of the mean and the variance of one model's request durations.

    `record` receives what workers report: the number of requests and their durations since the workers'
    start.
    """

    def __init__(self) -> None:
        self._seen: dict[str, UpstreamTraffic] = {}  # last recorded totals by backend
        self._requests = self._sum = self._squares = 0.0

    def record(self, totals: UpstreamTraffic, passed: float) -> None:
        """Record how many requests one backend has answered so far, and how long they took.

        Args:
            totals: number and total durations of the model's requests to the backend, since the workers
                started.
            passed: seconds since the last call.
        """
        before = self._seen.get(totals.backend)
        self._seen[totals.backend] = totals
        if before is None or before.requests > totals.requests:  # smaller if a worker has ended
            if before is not None:
                return
            before = UpstreamTraffic(model=totals.model, backend=totals.backend)
        requests = totals.requests - before.requests
        weight = min(1.0, _MOST_REQUESTS / requests) if requests else 0.0
        decay = math.exp(-passed / _AVERAGING_SECONDS) if requests else 1.0
        self._requests = self._requests * decay + requests * weight
        self._sum = self._sum * decay + max(totals.seconds - before.seconds, 0.0) * weight
        squares = max(totals.squared_seconds - before.squared_seconds, 0.0)
        self._squares = self._squares * decay + squares * weight

    @property
    def mean(self) -> float:
        """Mean duration in seconds; 0 if no duration is known."""
        return self._sum / self._requests if self._requests > 0 else 0.0

    @property
    def variation(self) -> float:
        """Variance of the durations, divided by the square of their mean.

        While few requests have ended, the value is close to 1, as in an exponential distribution. The first
        requests to end are the short ones, so they do not show the real variance.
        """
        if not self._sum:
            return 1.0
        measured = max(self._squares / self._requests / self.mean**2 - 1.0, 0.0)
        return (measured * self._requests + _PRIOR_REQUESTS) / (self._requests + _PRIOR_REQUESTS)


def longest_remaining(durations: Spread, count: float, probability: float) -> float:
    """Return the seconds after which all requests now in flight have ended, with the given probability.

    It is not known when each request began. Durations are assumed to have a lognormal distribution.

    Args:
        durations: mean and variance of the durations of the model's requests.
        count: number of requests in flight.
        probability: a number from 0 to 1.
    """
    each = probability ** (1.0 / max(count, 1.0))
    return durations.mean * _remaining_quantile(round(each, 6), round(durations.variation, 2))


@lru_cache(maxsize=4096)
def _remaining_quantile(probability: float, variation: float) -> float:
    """Return the time after which one request now in flight has ended, with the given probability.

    The unit of the result is the mean duration of a request. `variation` is the variance of the durations,
    divided by the square of their mean.
    """
    if variation <= 0:
        return probability
    sigma = math.sqrt(math.log1p(variation))
    low, high = 0.0, 1.0
    while _still_running(high, sigma) > 1 - probability:
        high *= 2
    for _ in range(40):
        middle = (low + high) / 2
        if _still_running(middle, sigma) > 1 - probability:
            low = middle
        else:
            high = middle
    return high


def _still_running(seconds: float, sigma: float) -> float:
    """Return the probability that a request in flight takes at least `seconds` more.

    The durations of all requests are assumed to have a lognormal distribution with the mean 1.

    Args:
        seconds: further duration, in units of the mean duration.
        sigma: standard deviation of the logarithm of the durations.
    """
    upper = (sigma * sigma / 2 - math.log(seconds)) / sigma
    return _NORMAL.cdf(upper) - seconds * _NORMAL.cdf(upper - sigma)
