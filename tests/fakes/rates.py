"""Fake rate limits with values that a test sets."""

from batchwright.inference.limits.fleet_rate_limits import EffectiveRates
from batchwright.rules.limits.rate_allocation import Pacing, RateAllocation


class FixedRates(EffectiveRates):
    """Rate limits that are the same for all models.

    Args:
        pacing: how fast requests of every model are sent; None if there is no limit.
        belongs: task queue to which slices must move; empty if they stay in their queue.
    """

    def __init__(self, pacing: Pacing | None = None, belongs: str = "") -> None:
        self.belongs = belongs
        self.change(pacing)

    def change(self, pacing: Pacing | None) -> None:
        self.allocation = RateAllocation({}, pacing)

    def queue_of(self, model: str) -> str:
        return self.belongs

    async def other_queue(self, model: str, queue: str) -> str:
        return self.belongs
