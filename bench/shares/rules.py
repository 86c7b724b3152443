"""The compared rules for sharing permits between tenants.

A permit is the right to have one request in flight. A rule decides which waiting tenant gets the next permit.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Protocol

from batchwright.rules.dispatch.fair_queue import FairShare

_FIRST_ESTIMATE = 1.0  # seconds, until a request has ended
_SMOOTHING = 0.05


class SharingRule(Protocol):
    def start_waiting(
        self, tenant: str, default_weight: float, waiting: Collection[str], now: float, /
    ) -> None: ...

    def next_tenant(self, waiting: Collection[str], now: float) -> str: ...

    def grant(self, tenant: str, weight: float, now: float) -> None: ...

    def release(self, tenant: str, now: float, *, seconds: float, is_contended: bool) -> None:
        """Record that a request of the tenant has ended. It was in flight for `seconds`.

        `is_contended` is False if no tenant waits for a permit.
        """
        ...


class ByRequests:
    """A rule that shares permits by the number of requests. Long and short requests count the same.

    A tenant of weight 2 can send twice as many requests as a tenant of weight 1. The rule is known as
    start-time fair queueing.
    """

    def __init__(self) -> None:
        self._clocks: dict[str, float] = {}
        self._now = 0.0

    def start_waiting(self, tenant: str, weight: float, waiting: Collection[str], now: float) -> None:
        self._clocks[tenant] = max(self._clocks.get(tenant, 0.0), self._now)

    def next_tenant(self, waiting: Collection[str], now: float) -> str:
        return min(waiting, key=self._clocks.__getitem__)

    def grant(self, tenant: str, weight: float, now: float) -> None:
        self._now = self._clocks[tenant]
        self._clocks[tenant] += 1.0 / weight

    def release(self, tenant: str, now: float, *, seconds: float, is_contended: bool) -> None:
        pass


@dataclass
class ByEstimate:
    """A rule that shares permits by the durations of requests, as start-time fair queueing by time.

    All requests of a tenant of weight 2 together take twice as much time as those of a tenant of weight 1. If
    a request has not ended, its duration is estimated. The estimate is the moving average of the durations of
    the tenant's ended requests. If the tenant has no ended requests, the moving average of all requests is
    used.
    """

    clocks: dict[str, float] = field(default_factory=dict[str, float])
    charged: dict[str, list[tuple[float, float]]] = field(
        default_factory=dict[str, list[tuple[float, float]]]
    )
    means: dict[str, float] = field(default_factory=dict[str, float])
    mean: float = _FIRST_ESTIMATE
    now: float = 0.0

    def start_waiting(self, tenant: str, weight: float, waiting: Collection[str], now: float) -> None:
        lowest = min((self.clocks[other] for other in waiting if other != tenant), default=self.now)
        self.clocks[tenant] = max(self.clocks.get(tenant, lowest), lowest)

    def next_tenant(self, waiting: Collection[str], now: float) -> str:
        return min(waiting, key=self.clocks.__getitem__)

    def grant(self, tenant: str, weight: float, now: float) -> None:
        estimate = self.means.get(tenant, self.mean)
        self.now = self.clocks[tenant]
        self.clocks[tenant] += estimate / weight
        self.charged.setdefault(tenant, []).append((estimate, weight))

    def release(self, tenant: str, now: float, *, seconds: float, is_contended: bool) -> None:
        estimate, weight = self.charged[tenant].pop(0)
        self.clocks[tenant] += (seconds - estimate) / weight
        before = self.means.get(tenant, seconds)
        self.means[tenant] = before + _SMOOTHING * (seconds - before)
        self.mean += _SMOOTHING * (seconds - self.mean)


class ByTimeInFlight(FairShare):
    """Batchwright's rule, which shares permits by the time that requests are in flight.

    All requests of a tenant of weight 2 together get twice as much time as those of a tenant of weight 1. The
    time is counted while a request is in flight. Therefore, the rule needs no estimate.
    """

    def release(self, tenant: str, now: float, *, is_contended: bool, seconds: float = 0.0) -> None:
        super().release(tenant, now, is_contended=is_contended)


RULES: dict[str, Callable[[], SharingRule]] = {
    "by requests": ByRequests,
    "by estimated time": ByEstimate,
    "by time in flight": ByTimeInFlight,
}
