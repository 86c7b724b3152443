"""Test helpers for permits. A request must hold a permit while it is in flight, and permits are limited."""

from batchwright.inference.limits.concurrency_limiter import ConcurrencyLimiter, Permit, PermitRequest


class PermitWaiter:
    """A waiting request for a permit, as slices make it.

    It enters the queue of the limiter when it is created. `done` becomes True when the permit is granted.

    Args:
        weight: weight of the tenant. Permits are shared between tenants in proportion to their weights.
        number: number of the slice.
        cost: how much its next line would cost in the prefix caches of the backends.
    """

    def __init__(
        self,
        permits: ConcurrencyLimiter,
        model: str,
        tenant: str = "t",
        weight: float = 1,
        *,
        batch: str = "batch",
        number: int = 0,
        cost: float = 0,
    ) -> None:
        self._permits: ConcurrencyLimiter = permits
        self._permit: Permit | None = None
        self._waiter = PermitRequest(model, tenant, weight, batch, number, self._granted, cost=lambda: cost)
        permits.enqueue(self._waiter)

    @property
    def done(self) -> bool:
        return self._permit is not None

    @property
    def permit(self) -> Permit:
        assert self._permit is not None
        return self._permit

    def withdraw(self) -> None:
        self._permits.cancel(self._waiter)

    def _granted(self, permit: Permit) -> None:
        self._permit = permit


def taken(permits: ConcurrencyLimiter, model: str, tenant: str = "t") -> Permit | None:
    """Return a permit if one is free now, otherwise None."""
    waiter = PermitWaiter(permits, model, tenant)
    if waiter.done:
        return waiter.permit
    waiter.withdraw()
    return None
