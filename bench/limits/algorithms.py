"""The compared concurrency limits: fixed, additive increase, latency gradient, and Batchwright's own.

A limit is the number of requests that may be in flight. `on_complete` adapts the limit after each request.
"""

from collections.abc import Callable
from typing import Protocol

from batchwright.rules.limits.adaptive_limit import AdaptiveLimit
from batchwright.rules.limits.backend_load import LoadSignal
from batchwright.rules.limits.limit_trial import LimitBounds


class LimitAlgorithm(Protocol):
    @property
    def current(self) -> int: ...

    def on_complete(
        self, signal: LoadSignal, *, sent_at: float, now: float, in_flight: int, in_flight_when_sent: int
    ) -> object: ...


class FixedLimit:
    def __init__(self, limit: int) -> None:
        self.current = limit

    def on_complete(
        self, signal: LoadSignal, *, sent_at: float, now: float, in_flight: int, in_flight_when_sent: int
    ) -> None:
        pass


class AdditiveIncrease:
    """Limit that grows slowly while requests succeed, and halves after each rejection or timeout.

    A limit of n grows by one after n responses. TCP does the same (additive increase, multiplicative
    decrease).
    """

    def __init__(self, ceiling: int) -> None:
        self._limit, self._ceiling = float(ceiling), ceiling

    @property
    def current(self) -> int:
        return int(self._limit)

    def on_complete(
        self, signal: LoadSignal, *, sent_at: float, now: float, in_flight: int, in_flight_when_sent: int
    ) -> None:
        if signal is LoadSignal.RESPONDED:
            self._limit = min(self._limit + 1 / self._limit, self._ceiling)
        else:
            self._limit = max(1.0, self._limit / 2)


class GradientLimit:
    """Limit that shrinks when the current latency exceeds the long-term latency.

    It works like Gradient2 in Netflix's library concurrency-limits.
    """

    def __init__(self, ceiling: int) -> None:
        self._limit, self._ceiling = float(ceiling), ceiling
        self._long = 0.0

    @property
    def current(self) -> int:
        return int(self._limit)

    def on_complete(
        self, signal: LoadSignal, *, sent_at: float, now: float, in_flight: int, in_flight_when_sent: int
    ) -> None:
        if signal is not LoadSignal.RESPONDED:
            self._limit = max(1.0, self._limit * 0.9)
            return
        seconds = now - sent_at
        self._long += (seconds - self._long) / 600 if self._long else seconds
        if self._long > 2 * seconds:
            self._long *= 0.95
        if in_flight < self._limit / 2:
            return
        gradient = max(0.5, min(1.0, 1.5 * self._long / seconds))
        wanted = self._limit * gradient + 4
        self._limit = max(1.0, min(self._limit * 0.8 + wanted * 0.2, float(self._ceiling)))


def ours(ceiling: int, tolerance: float = 1.5) -> AdaptiveLimit:
    return AdaptiveLimit(LimitBounds(ceiling, tolerance), 0.0)


LIMITS: dict[str, Callable[[], LimitAlgorithm]] = {
    "fixed, 64": lambda: FixedLimit(64),
    "fixed, 128": lambda: FixedLimit(128),
    "additive increase": lambda: AdditiveIncrease(128),
    "latency gradient": lambda: GradientLimit(128),
    "adaptive": lambda: ours(128),
}

# For backends shared with interactive users: a quarter of the slots, and less tolerance for slow responses.
SHARED: dict[str, Callable[[], LimitAlgorithm]] = {"adaptive, capacity_fraction 0.25": lambda: ours(32, 1.25)}
