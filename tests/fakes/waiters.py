"""Places in the queue for permits, and what came of them."""

from batchwright.inference.limits import Permit, Permits, PermitWaiter


class Asked:
    """Lines up at once, as a slice of a batch; `done` once there is a permit."""

    def __init__(
        self,
        permits: Permits,
        model: str,
        tenant: str = "t",
        weight: float = 1,
        *,
        batch: str = "batch",
        number: int = 0,
    ) -> None:
        self._permits: Permits = permits
        self._permit: Permit | None = None
        self._waiter = PermitWaiter(model, tenant, weight, batch, number, self._granted)
        permits.line_up(self._waiter)

    @property
    def done(self) -> bool:
        return self._permit is not None

    @property
    def permit(self) -> Permit:
        assert self._permit is not None
        return self._permit

    def withdraw(self) -> None:
        self._permits.withdraw(self._waiter)

    def _granted(self, permit: Permit) -> None:
        self._permit = permit


def taken(permits: Permits, model: str, tenant: str = "t") -> Permit | None:
    """A permit that is there at once."""
    asked = Asked(permits, model, tenant)
    if asked.done:
        return asked.permit
    asked.withdraw()
    return None
