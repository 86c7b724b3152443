"""Divide the permits of a model fairly between tenants, by the time that their requests are in flight."""

import hashlib
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass

MIN_WEIGHT = 0.001
MAX_WEIGHT = 1000.0
_LEAD_SECONDS = 5.0  # a lead of so many seconds counts as one request in flight, divided by the weight
_PAUSE_SECONDS = 5.0  # after so long without requests, a tenant has no debt left
_GRANT_SECONDS = 0.0001  # minimum time of a request, so that tenants alternate even if requests take no time
_TENANT_BYTES, _DIGITS = 48, 12  # lengths of a fairness key's parts; Temporal allows 64 bytes


@dataclass(slots=True, eq=False)
class _Usage:
    """The requests that one tenant has in flight to a model, and a clock that adds up their time.

    Attributes:
        clock: sum of the seconds for which each request was in flight, divided by the tenant's weight, up to
            the time `since`. Two requests in flight at once add two seconds per second.
        since: when `clock` was last updated.
        default_weight: weight of the tenant's batches.
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
        """Set another `share`, and adjust the clock.

        After this, the clock's lead over the clock `present` stands for the same number of requests as
        before.
        """
        if share != self.share:
            self.clock = present + (self.clock - present) * share / self.share
            self.share = share


class FairShare:
    """Decides which tenant gets the next permit, by the time that each tenant's requests are in flight.

    The next permit goes to the waiting tenant with the fewest requests in flight in proportion to its weight.
    So the requests in flight of tenants that always wait are in proportion to the tenants' weights. The
    durations of the requests do not matter, and nothing has to be estimated.

    Whole numbers of requests rarely divide like the weights, and there may be more tenants than permits.
    Therefore each tenant also has a clock. For each request in flight, the clock advances by 1 / weight
    seconds per second. The lead of a tenant is the difference between its clock and the clock of the tenant
    that got the last permit. A lead of 5 s counts as one more request in flight. A longer lead counts as
    more, but always as less than two. A negative lead counts in the same way as fewer requests.

    A tenant that begins to wait starts at the lowest clock among the waiting tenants and the tenant that got
    the last permit. So it gets no advantage for the time when it sent less than its share, and after a pause
    it has no debt.
    """

    def __init__(self) -> None:
        self._usages: dict[str, _Usage] = {}
        self._last = _Usage(0.0, 0.0, 1.0, 1.0)  # usage of the tenant that got the last permit

    def start_waiting(self, tenant: str, default_weight: float, waiting: Collection[str], now: float) -> None:
        """Set the clock of a tenant that begins to wait.

        Args:
            tenant: the tenant.
            default_weight: the tenant's weight until `grant` or `refresh` sets another one.
            waiting: the tenants that wait. It makes no difference if `tenant` is one of them.
            now: the current time in seconds.
        """
        usages = self._usages
        lowest = self._last.clock_at(now)  # read before this tenant's clock changes, which may be `_last`
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
        """Return the tenant that gets the next permit. If several are equal, return the first in `waiting`.

        Args:
            waiting: the tenants that wait, at least one. `start_waiting` must have been called for each of
                them.
            now: the current time in seconds.
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

        A weight outside the allowed range counts as the nearest allowed weight.
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

        Args:
            is_contended: False if no tenant waits for the permit. The tenant has then taken nothing from
                others, and the next tenant that begins to wait gets no advantage over it.
        """
        usage = self._usages[tenant]
        usage.advance(now)
        usage.in_flight -= 1
        if not is_contended and usage.clock > self._last.clock_at(now):
            self._last = usage

    def refresh(self, weight_of: Callable[[str, float], float], waiting: Collection[str], now: float) -> None:
        """Apply the present weights, and drop the tenants that have been idle for some seconds.

        Args:
            weight_of: called with a tenant and its default weight; returns its present weight.
            waiting: the tenants that wait for a permit. They are not dropped.
            now: the current time in seconds.
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
    """Return a new Temporal fairness key for a tenant after its batch `stopped` has ended early.

    Temporal charges slices that were cancelled in the queue to their fairness key, as if they had run. With a
    new key, the tenant's other batches do not wait for these slices.
    """
    name = tenant.encode()[:_TENANT_BYTES].decode(errors="ignore")
    return f"{name}~{hashlib.sha256(f'{tenant}/{stopped}'.encode()).hexdigest()[:_DIGITS]}"
