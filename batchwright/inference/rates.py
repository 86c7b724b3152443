"""The rates in effect, as the table says now: read again and again, and kept while it cannot be read."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from batchwright.contracts.names import DISPATCH_QUEUE, inference_queue
from batchwright.rules.ids import safe_name
from batchwright.rules.rates import ALL_MODELS, Pacing, Rates, RatesConflict, Split, effective, split
from batchwright.settings import Settings

logger = logging.getLogger(__name__)


class Change(Protocol):
    @property
    def model(self) -> str: ...
    @property
    def requests_per_second(self) -> float: ...


class RatesTable(Protocol):
    """Where rates changed at run time are kept; the database's table is one."""

    async def all(self) -> Sequence[Change]: ...


class FleetRates:
    """Settings and the table's changes, split over the served models; before a first look, settings alone."""

    def __init__(
        self,
        settings: Settings,
        table: RatesTable,
        served: Callable[[], frozenset[str]],
        *,
        unavailable: type[Exception],
    ) -> None:
        """`unavailable` is what `table` raises while it cannot answer."""
        self._settings, self._table, self._served = settings, table, served
        self._unavailable = unavailable
        self._complaint = ""
        self._take(effective(settings.rates, {}))

    def pacing_of(self, model: str) -> Pacing | None:
        return self._own.get(model, self._shared)

    def queue_of(self, model: str) -> str:
        """The task queue of the model's slices; empty: its own."""
        return DISPATCH_QUEUE if self._rates.is_shared(model) else ""

    def queues(self) -> dict[str, Pacing | None]:
        """Every queue of the fleet's slices, and what limits it."""
        return self._split.queues(self._models)

    def in_effect(self) -> list[tuple[str, str, Pacing]]:
        """Model, queue and pacing of every rate; the model is empty for what those without one share."""
        own = [(model, self._split.of(model)) for model in sorted(self._models & self._split.own.keys())]
        found = [(model, inference_queue(safe_name(model)), pacing) for model, pacing in own if pacing]
        return [*found, (ALL_MODELS, DISPATCH_QUEUE, self._split.shared)] if self._split.shared else found

    async def elsewhere(self, model: str, queue: str) -> str:
        """Where the model's slices belong, if not on `queue`; while the table cannot be read, nowhere else.

        Read afresh: of two workers with different knowledge each would send the slice to the other.
        """
        if not self._rates.elsewhere(model, queue) or not await self.look():
            return ""
        return self._rates.elsewhere(model, queue)

    async def refresh(self) -> None:
        """Raises `unavailable`, or RatesConflict where settings and changes do not fit; the last stay."""
        changes = {row.model: row.requests_per_second for row in await self._table.all()}
        rates = effective(self._settings.rates, changes)
        rates.check()
        self._take(rates)

    async def look(self) -> bool:
        """`refresh`, where rates that cannot be had are logged, once, and the last ones stay."""
        try:
            await self.refresh()
        except (self._unavailable, RatesConflict) as error:
            if str(error) != self._complaint:
                logger.warning("the last known rates are kept", extra={"error": str(error)})
            self._complaint = str(error)
            return False
        self._complaint = ""
        return True

    async def run(self) -> None:
        """Looks for ever."""
        while True:
            await self.look()
            await asyncio.sleep(self._settings.model_refresh_seconds)

    def _take(self, rates: Rates) -> None:
        self._rates, self._models = rates, self._served()
        # While no model is known every own rate counts: rather too little is left for the rest than too much.
        known = self._models or rates.entries
        settings = self._settings
        self._split: Split = split(rates, known, settings.slice_lines, settings.slice_seconds)
        self._own, self._shared = self._split.own, self._split.shared  # asked for each line
