"""Rates as a test says: a pacing per model, and where slices belong."""

from activities.slices.pace import Rates
from batchwright.rules.rates import Pacing


class FixedRates(Rates):
    """`pacing` is every model's; `belongs` the task queue of their slices, if they have to move."""

    def __init__(self, pacing: Pacing | None = None, belongs: str = "") -> None:
        self.pacing, self.belongs = pacing, belongs

    def pacing_of(self, model: str) -> Pacing | None:
        return self.pacing

    def queue_of(self, model: str) -> str:
        return self.belongs

    async def elsewhere(self, model: str, queue: str) -> str:
        return self.belongs
