"""Fake rate limits with values that a test sets."""

from batchwright.inference.rate_limits import EffectiveRates
from batchwright.rules.dispatch.rate_limits import Pacing, RateAllocation


class FixedRates(EffectiveRates):
    """Rate limits that are the same for all models.

    Args:
        pacing: Pacing (how fast requests are sent) of every model. None if there is no limit.
        belongs: Task queue to which slices must move. Empty if they stay.
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
