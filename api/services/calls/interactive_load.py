"""Measures interactive calls (requests without a batch): how many are in flight at each backend, and how much
of the limits per minute they use. The results are averages over the last seconds.
"""

import math
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass

from batchwright.database.records import BackendLoad, InteractiveRate
from batchwright.telemetry.metrics import Metrics

_AVERAGE_SECONDS = 5.0
_NEGLIGIBLE = 0.05  # requests in flight; with fewer on average, a backend counts as idle
_NEGLIGIBLE_RATE = 0.05  # requests or tokens per minute; with fewer, a rate counts as not used


@dataclass(slots=True)
class _BackendUse:
    """The number of interactive calls in flight at one backend, now and on average.

    Attributes:
        in_flight: number of calls in flight now.
        request_seconds: sum of `in_flight` over time since the last report. For example, two calls in flight
            for three seconds add 6.
        changed_at: time of the last update of `request_seconds`, in seconds of a monotonic clock.
        mean: average number of calls in flight over the last seconds. Each report updates it.
    """

    changed_at: float
    in_flight: int = 0
    request_seconds: float = 0.0
    mean: float = 0.0

    def count(self, change: int, now: float) -> None:
        self.request_seconds += self.in_flight * (now - self.changed_at)
        self.in_flight += change
        self.changed_at = now


class InteractiveLoad:
    """A counter of the interactive calls (requests without a batch) of this process that are in flight at
    each backend.
    """

    def __init__(self, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._gauge = clock, metrics.interactive_in_flight
        self._uses: dict[str, _BackendUse] = {}
        self._reported_at = clock()

    @contextmanager
    def counted(self, url: str) -> Generator[None]:
        """Context manager that counts one call at the backend `url` as in flight."""
        use = self._uses.get(url)
        if use is None:
            use = self._uses[url] = _BackendUse(self._clock())
        use.count(1, self._clock())
        self._gauge.labels(url).set(use.in_flight)
        try:
            yield
        finally:
            use.count(-1, self._clock())
            self._gauge.labels(url).set(use.in_flight)

    def report(self) -> list[BackendLoad]:
        """Return how many calls are in flight at each backend: the present number, and the average over the
        last seconds. Backends without calls in the last seconds are left out.

        Call this regularly, because it also updates the averages.
        """
        now = self._clock()
        seconds, self._reported_at = max(now - self._reported_at, 1e-6), now
        newest = 1 - math.exp(-seconds / _AVERAGE_SECONDS)
        for url, use in list(self._uses.items()):
            use.count(0, now)
            request_seconds, use.request_seconds = use.request_seconds, 0.0
            use.mean += newest * (request_seconds / seconds - use.mean)
            if not (request_seconds or use.in_flight) and use.mean < _NEGLIGIBLE:
                del self._uses[url]
                self._gauge.remove_by_labels({"backend": url})
        return [BackendLoad(url, use.in_flight, use.mean) for url, use in self._uses.items()]


@dataclass(slots=True)
class _RateUse:
    """The requests and tokens of one tenant or model that count towards its limits per minute.

    Attributes:
        requests, tokens: number of requests and tokens since the last report.
        requests_per_minute, tokens_per_minute: averages over the last seconds. Each report updates them.
    """

    requests: int = 0
    tokens: int = 0
    requests_per_minute: float = 0.0
    tokens_per_minute: float = 0.0

    def average(self, newest: float, seconds: float) -> None:
        """Update the averages with the requests and tokens since the last report. Then set the numbers since
        the last report to 0.

        Args:
            newest: weight of the numbers since the last report, from 0 to 1. The previous averages have the
                weight `1 - newest`.
            seconds: time since the last report.
        """
        per_minute = 60 / seconds
        self.requests_per_minute += newest * (self.requests * per_minute - self.requests_per_minute)
        self.tokens_per_minute += newest * (self.tokens * per_minute - self.tokens_per_minute)
        self.requests = self.tokens = 0


class InteractiveRates:
    """A counter of the requests and tokens of this process's interactive calls (requests without a batch).
    They count towards the limits per minute.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._uses: dict[tuple[bool, str], _RateUse] = {}
        self._reported_at = clock()

    def count(self, tenant: str, model: str, requests: int, tokens: int = 0, model_tokens: int = 0) -> None:
        """Add requests and tokens of a call to the numbers of its tenant and its model.

        Args:
            tenant: tenant of the call.
            model: model of the call.
            requests: number of requests to add; -1 to remove a counted request that no backend has got.
            tokens: number of tokens that count towards the tenant's limit.
            model_tokens: number of tokens that count towards the model's limit.
        """
        for key, its_tokens in (((True, tenant), tokens), ((False, model), model_tokens)):
            use = self._uses.setdefault(key, _RateUse())
            use.requests += requests
            use.tokens += its_tokens

    def report(self) -> list[InteractiveRate]:
        """Return for each tenant and each model how many requests and tokens per minute it uses, as averages
        over the last seconds. Tenants and models without calls in the last seconds are left out.

        Call this regularly, because it also updates the averages.
        """
        now = self._clock()
        seconds, self._reported_at = max(now - self._reported_at, 1e-6), now
        newest = 1 - math.exp(-seconds / _AVERAGE_SECONDS)
        for key, use in list(self._uses.items()):
            use.average(newest, seconds)
            if max(use.requests_per_minute, use.tokens_per_minute) < _NEGLIGIBLE_RATE:
                del self._uses[key]
        return [
            InteractiveRate(*key, max(0.0, use.requests_per_minute), use.tokens_per_minute)
            for key, use in self._uses.items()
        ]
