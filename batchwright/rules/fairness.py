"""Whose turn it is among tenants that wait for the same thing: shares by weight, by virtual time."""

from collections.abc import Collection

MIN_WEIGHT = 0.001
MAX_WEIGHT = 1000.0
_MANY = 1000


class Shares:
    """Each grant moves a tenant's own clock on by 1 / weight; the tenant whose clock is behind is next.

    A tenant that was away starts at the clock of the last grant: it neither saves up nor owes.
    """

    def __init__(self) -> None:
        self._clocks: dict[str, float] = {}
        self._now = 0.0
        self._many = _MANY

    def next_of(self, waiting: Collection[str]) -> str:
        """Who of `waiting` (at least one) is next; among equals the first named."""
        return next(iter(waiting)) if len(waiting) == 1 else min(waiting, key=self._clock)

    def charge(self, tenant: str, weight: float) -> None:
        """`tenant` was granted one."""
        clocks, now = self._clocks, self._now
        clock = clocks.get(tenant, now)
        if clock < now:
            clock = now
        self._now = clock  # no clock is behind it
        clocks[tenant] = clock + 1.0 / (weight if MIN_WEIGHT < weight < MAX_WEIGHT else _bounded(weight))
        if len(clocks) > self._many:
            self._forget()

    def _clock(self, tenant: str) -> float:
        return max(self._clocks.get(tenant, 0.0), self._now)

    def _forget(self) -> None:
        self._clocks = {tenant: clock for tenant, clock in self._clocks.items() if clock > self._now}
        self._many = max(_MANY, 2 * len(self._clocks))  # those who stay are not gone through with each grant


def _bounded(weight: float) -> float:
    return min(max(weight, MIN_WEIGHT), MAX_WEIGHT)
