"""Tenants whose slices always wait for permits and hold them for given times, on a virtual clock."""

import heapq
import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable
from itertools import count

from batchwright.inference.limits.adaptive_backend_limits import AdaptiveLimitPolicy, BackendLimits
from batchwright.inference.limits.concurrency_limiter import ConcurrencyLimiter, Permit, PermitRequest
from batchwright.inference.limits.tenant_and_model_limits import Limit, TenantAndModelLimits, TenantSettings
from batchwright.telemetry.metrics import Metrics

LINE_BYTES = 400


class PermitTraffic:
    """A simulation of slices of some tenants that use one limiter. Its clock jumps from event to event.

    Attributes:
        now: time in seconds, from 0.
        grants: tenant and time of each granted permit, in order.
        tokens: tenant, time and tokens of each request, in order.
    """

    def __init__(
        self,
        in_flight: int,
        shares: TenantSettings | None = None,
        record_wait: Callable[[Limit, str, str, float], None] | None = None,
    ) -> None:
        """Create the limiter of a worker. Each model may have `in_flight` requests in flight."""
        self.now = 0.0
        self.limits = (
            TenantAndModelLimits(shares, record_wait) if record_wait else TenantAndModelLimits(shares)
        )
        self.limiter = ConcurrencyLimiter(
            total=10_000,
            model_limit=lambda _: in_flight,
            backends=BackendLimits(AdaptiveLimitPolicy(), lambda _: (), Metrics(), lambda: self.now),
            limits=self.limits,
        )
        self.grants: list[tuple[str, float]] = []
        self.tokens: list[tuple[str, float, int]] = []
        self._held: dict[str, list[tuple[float, float]]] = defaultdict(list)  # start and end of each permit
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def at(self, when: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._due, (when, next(self._numbers), what))

    def send(
        self,
        tenant: str,
        seconds: Callable[[], float],
        *,
        slices: int = 2,
        since: float = 0.0,
        until: float = math.inf,
        weight: float = 1.0,
        model: str = "m",
        key_id: str = "",
        tokens: int = 0,
    ) -> None:
        """Let the slices of one batch send requests from `since` until `until`, in seconds. Each slice always
        waits for a permit.

        Each request takes `seconds()` seconds. It uses `tokens` tokens, which the limiter learns only when
        the request ends.
        """

        def begin(number: int) -> None:
            def granted(permit: Permit) -> None:
                end = self.now + seconds()
                self.grants.append((tenant, self.now))
                permit.charge(LINE_BYTES)
                self._held[tenant].append((self.now, end))
                self.tokens.append((tenant, self.now, tokens))
                self.at(end, lambda: self._end(permit, tokens))
                if self.now < until:
                    self.limiter.enqueue(asked)

            batch = f"{tenant}/{model}/{key_id}"
            asked = PermitRequest(model, tenant, weight, batch, number, granted, key_id)
            self.limiter.enqueue(asked)

        for number in range(slices):
            self.at(since, lambda number=number: begin(number))

    def _end(self, permit: Permit, tokens: int) -> None:
        permit.correct_charge(tokens)
        permit.release()

    def most_in_a_minute(self, tenant: str = "") -> int:
        """Return the largest number of requests in any 60 seconds, of one tenant or of all tenants."""
        times = [at for name, at in self.grants if not tenant or name == tenant]
        return max((bisect_left(times, at + 60) - number for number, at in enumerate(times)), default=0)

    def tick(self, seconds: float, *models: str) -> None:
        """Refresh the limiter every `seconds` seconds, as waiting slices do."""

        def refresh() -> None:
            for model in models or ("m",):
                self.limiter.refresh(model)
            self.at(self.now + seconds, refresh)

        self.at(self.now + seconds, refresh)

    def run(self, until: float) -> None:
        while self._due and self._due[0][0] <= until:
            self.now, _, what = heapq.heappop(self._due)
            what()
        self.now = until

    def work(self, tenant: str, since: float, until: float) -> float:
        """Return the seconds for which the tenant's requests were in flight between `since` and `until`."""
        return sum(max(0.0, min(end, until) - max(start, since)) for start, end in self._held[tenant])

    def in_flight(self, tenant: str) -> int:
        return sum(start <= self.now < end for start, end in self._held[tenant])

    def least_even_minute(self, tenants: list[str], since: float, until: float) -> float:
        """Return the lowest Jain's index of the tenants' work in any minute between `since` and `until`."""
        return min(
            jains_index([self.work(tenant, start, start + 60) for tenant in tenants])
            for start in range(int(since), int(until) - 59, 10)
        )


def jains_index(values: list[float]) -> float:
    """Return how even the values are, as Jain's index. 1.0 is perfectly even.

    If only one of n values is not 0, the result is 1/n.
    """
    return sum(values) ** 2 / (len(values) * sum(value**2 for value in values))
