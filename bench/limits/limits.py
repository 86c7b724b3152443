"""The limits that are compared: fixed ones, plain additive increase, a plain latency gradient, and ours."""

from collections.abc import Callable
from typing import Protocol

from batchwright.rules.inflight import InFlightLimit
from batchwright.rules.load import Bounds, Signal


class Limit(Protocol):
    @property
    def current(self) -> int: ...

    def ended(self, signal: Signal, *, sent_at: float, now: float, in_flight: int, among: int) -> object: ...


class Fixed:
    def __init__(self, limit: int) -> None:
        self.current = limit

    def ended(self, signal: Signal, *, sent_at: float, now: float, in_flight: int, among: int) -> None:
        pass


class AdditiveIncrease:
    """As TCP did: one more after a limit's worth of answers, half at a refusal or timeout."""

    def __init__(self, ceiling: int) -> None:
        self._limit, self._ceiling = float(ceiling), ceiling

    @property
    def current(self) -> int:
        return int(self._limit)

    def ended(self, signal: Signal, *, sent_at: float, now: float, in_flight: int, among: int) -> None:
        if signal is Signal.ANSWERED:
            self._limit = min(self._limit + 1 / self._limit, self._ceiling)
        else:
            self._limit = max(1.0, self._limit / 2)


class Gradient:
    """A long against a short average of the latency, as in Netflix's concurrency-limits (Gradient2)."""

    def __init__(self, ceiling: int) -> None:
        self._limit, self._ceiling = float(ceiling), ceiling
        self._long = 0.0

    @property
    def current(self) -> int:
        return int(self._limit)

    def ended(self, signal: Signal, *, sent_at: float, now: float, in_flight: int, among: int) -> None:
        if signal is not Signal.ANSWERED:
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


def ours(ceiling: int, tolerance: float = 1.5) -> InFlightLimit:
    return InFlightLimit(Bounds(1, ceiling, tolerance), 0.0)


LIMITS: dict[str, Callable[[], Limit]] = {
    "fixed, 64": lambda: Fixed(64),
    "fixed, 128": lambda: Fixed(128),
    "additive increase": lambda: AdditiveIncrease(128),
    "latency gradient": lambda: Gradient(128),
    "ours": lambda: ours(128),
}

# Where people share the engine: a quarter of what is configured, and less patience with slow answers.
SHARED: dict[str, Callable[[], Limit]] = {"ours, capacity_fraction 0.25": lambda: ours(32, 1.25)}
