"""Share the permits of a model fairly between tenants, by the time that their requests are in flight."""

import hashlib
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass

MIN_WEIGHT = 0.001
MAX_WEIGHT = 1000.0
_LEAD_SECONDS = 5.0  # lead that counts as one request in flight, divided by the weight
_PAUSE_SECONDS = 5.0  # after so long without requests, a tenant has no debt
_GRANT_SECONDS = 0.0001  # least time that a request counts, so that tenants alternate if it takes none
_TENANT_BYTES, _DIGITS = 48, 12  # parts of a fairness key, for which Temporal allows 64 bytes


@dataclass(slots=True, eq=False)
class _Usage:
    """The requests that one tenant has in flight to a model, and the clock that adds up their time.

    Attributes:
        clock: seconds for which requests were in flight until the time `since`, divided by the tenant's
            weight. Each request counts, even if several are in flight at once.
        since: when `clock` was last updated.
        default_weight: the weight of the tenant's batches.
        share: 1 divided by the tenant's present weight.
    """

    clock: float
    since: float
    default_weight: float
    share: float
    in_flight: int = 0

    def clock_at(self, now: float) -> float:
        return self.clock + self.in_flight * (now - self.since) * self.share

    def advance(self, now: float) -> None:
        self.clock += self.in_flight * (now - self.since) * self.share
        self.since = now

    def reweigh(self, share: float, present: float) -> None:
        """Set another share, and adjust the clock.

        The clock's lead over the clock `present` then stands for the same number of requests as before.
        """
        if share != self.share:
            self.clock = present + (self.clock - present) * share / self.share
            self.share = share


class FairShare:
    """Decides which tenant gets the next permit, by the time that requests of each tenant are in flight.

    The next one is the waiting tenant that has the fewest requests in flight in proportion to its weight. So
    tenants that always wait have requests in flight in proportion to their weights, however long each request
    takes. Nothing has to be estimated.

    Whole numbers of requests rarely divide like the weights, and there may be more tenants than permits.
    Therefore each tenant also has a clock. While a request of the tenant is in flight, the clock advances by
    1 / weight seconds per second. The lead of a tenant is the difference between its clock and the clock of
    the tenant that got the last permit. A lead of 5 s counts as one more request in flight. A longer lead
    counts as more, but always as less than two. A negative lead counts in the same way as fewer requests.

    A tenant that begins to wait starts at the lowest clock of those that wait or got the last permit. So it
    has no credit from times when it sent less than its share, and after a pause it has no debt.
    """

    def __init__(self) -> None:
        self._usages: dict[str, _Usage] = {}
        self._last = _Usage(0.0, 0.0, 1.0, 1.0)  # that of the tenant which got the last permit

    def start_waiting(self, tenant: str, default_weight: float, waiting: Collection[str], now: float) -> None:
        """Set the clock of a tenant that begins to wait at the time `now`, in seconds.

        Args:
            tenant: the tenant.
            default_weight: its weight until `grant` or `refresh` sets another one.
            waiting: the tenants that wait. It makes no difference whether `tenant` is one of them.
            now: the time.
        """
        usages = self._usages
        lowest = self._last.clock_at(now)  # before a change of this tenant's clock, which may be the last one
        usage = usages.get(tenant)
        if usage is None:
            usage = usages[tenant] = _Usage(-math.inf, now, default_weight, _share_of(default_weight))
        elif not usage.in_flight and now - usage.since > _PAUSE_SECONDS:
            usage.clock = -math.inf  # no debt after a pause
        usage.default_weight = default_weight
        if usage.clock_at(now) < lowest:
            for other in waiting:
                if other != tenant:
                    lowest = min(lowest, usages[other].clock_at(now))
            usage.clock, usage.since = max(usage.clock_at(now), lowest), now

    def next_tenant(self, waiting: Collection[str], now: float) -> str:
        """Return the tenant that gets the next permit.

        If several tenants are equal, return the first in `waiting`. `waiting` must contain at least one
        tenant, and only those for which `start_waiting` was called.
        """
        if len(waiting) == 1:
            return next(iter(waiting))
        usages, present = self._usages, self._last.clock_at(now)
        found, lowest = "", math.inf
        for tenant in waiting:
            usage = usages[tenant]
            in_flight, share = usage.in_flight, usage.share
            clock = usage.clock + in_flight * (now - usage.since) * share
            lead = (clock - present) / (share * _LEAD_SECONDS)
            level = (in_flight + 2.0 * lead / (1.0 + abs(lead))) * share
            if level < lowest:
                found, lowest = tenant, level
        return found

    def grant(self, tenant: str, weight: float, now: float) -> None:
        """Record that a request of a waiting tenant is in flight from the time `now`.

        A weight out of bounds counts as the nearest one within them.
        """
        usage = self._usages[tenant]
        usage.advance(now)
        if weight * usage.share != 1.0:
            usage.reweigh(_share_of(weight), self._last.clock_at(now))
        usage.in_flight += 1
        self._last = usage
        usage.clock += _GRANT_SECONDS * usage.share

    def release(self, tenant: str, now: float, *, is_contended: bool) -> None:
        """Record that a request of the tenant is no longer in flight.

        If `is_contended` is False, no tenant waits for the permit, so this tenant has taken nothing from
        others. The next tenant that begins to wait then starts at the same clock and gets no advantage.
        """
        usage = self._usages[tenant]
        usage.advance(now)
        usage.in_flight -= 1
        if not is_contended and usage.clock > self._last.clock_at(now):
            self._last = usage

    def refresh(self, weight_of: Callable[[str, float], float], waiting: Collection[str], now: float) -> None:
        """Apply the present weights, and forget the tenants that have been idle for some seconds.

        Args:
            weight_of: called with a tenant and its default weight; returns its present weight.
            waiting: the tenants that wait for a permit. They are not forgotten.
            now: the time in seconds.
        """
        present = self._last.clock_at(now)
        for tenant, usage in list(self._usages.items()):
            if not usage.in_flight and tenant not in waiting and now - usage.since > _PAUSE_SECONDS:
                del self._usages[tenant]
            else:
                if usage.in_flight:
                    usage.advance(now)
                usage.reweigh(_share_of(weight_of(tenant, usage.default_weight)), present)


def _share_of(weight: float) -> float:
    if MIN_WEIGHT <= weight <= MAX_WEIGHT:
        return 1.0 / weight
    return 1.0 / min(max(MIN_WEIGHT, weight), MAX_WEIGHT)


def fresh_fairness_key(tenant: str, stopped: str) -> str:
    """Return a new Temporal fairness key for the batches of a tenant, after its batch `stopped` ended early.

    Temporal counts slices that were cancelled in the queue as if they had run, and charges them to their
    fairness key. A new key keeps the tenant's other batches from paying for them.
    """
    name = tenant.encode()[:_TENANT_BYTES].decode(errors="ignore")
    return f"{name}~{hashlib.sha256(f'{tenant}/{stopped}'.encode()).hexdigest()[:_DIGITS]}"
