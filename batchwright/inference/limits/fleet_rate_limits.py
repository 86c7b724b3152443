"""Rate limits in effect for all workers together.

The limits come from the settings. Operators can change the limits in the database at run time.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from batchwright.contracts.model_registry.stored_models import RateChange
from batchwright.contracts.temporal_names import DISPATCH_QUEUE, inference_queue
from batchwright.rules.ids import safe_name
from batchwright.rules.limits.rate_allocation import (
    ALL_MODELS,
    Pacing,
    RateAllocation,
    RatesConflict,
    RateTable,
    allocate_rates,
    effective_rates,
)
from batchwright.settings import Settings

logger = logging.getLogger(__name__)
_REFRESH_SECONDS = 5.0


class StoredRates(Protocol):
    """Interface of the database table with the rate limits that operators have changed at run time."""

    async def all(self) -> Sequence[RateChange]: ...


class EffectiveRates(Protocol):
    """The rate limits in effect now, which may change at any time.

    The attribute `allocation` contains, for each model, how fast one turn may send lines. A turn is one
    attempt of a slice (a part of a batch). When limits change, a new object replaces `allocation`. Callers
    must therefore read the attribute again for each line.
    """

    allocation: RateAllocation

    def pacing_of(self, model: str) -> Pacing | None:
        """Return how fast one attempt of a slice may send lines of the model; None for no limit."""
        return self.allocation.of(model)

    def queue_of(self, model: str) -> str:
        """Return the Temporal task queue that the model shares with other models.

        If the model has its own task queue, the result is empty.
        """
        ...

    async def other_queue(self, model: str, queue: str) -> str:
        """Return the Temporal task queue to which the model's slices must move from `queue`.

        If the slices can stay in `queue`, the result is empty. Models that share a rate also share a task
        queue. If rates change, slices may therefore have to move.
        """
        ...


class FleetRates(EffectiveRates):
    """The rate limits from the settings and the database. The limit over all models is divided between the
    models.

    Until the first refresh, only the rates in the settings are in effect.
    """

    def __init__(
        self,
        settings: Settings,
        table: StoredRates,
        served: Callable[[], frozenset[str]],
        *,
        unavailable: type[Exception],
    ) -> None:
        """Start with the rates in the settings.

        Args:
            table: the rate limits that operators have changed at run time.
            served: returns the names of the models that backends serve.
            unavailable: the exception that `table` raises while the database is unreachable.
        """
        self._settings, self._table, self._served = settings, table, served
        self._unavailable = unavailable
        self._complaint = ""
        self._take(effective_rates(settings.rates, {}))

    def queue_of(self, model: str) -> str:
        return DISPATCH_QUEUE if self._rates.is_shared(model) else ""

    def queues(self) -> dict[str, Pacing | None]:
        """Return the rate limit of each task queue of Temporal, by the queue's name; None means no limit."""
        return self.allocation.queues(self._models)

    def in_effect(self) -> list[tuple[str, str, Pacing]]:
        """Return every rate limit as (model, task queue, pacing).

        A pacing contains how many requests one turn (attempt of a slice) may send, and how many turns may
        start per second. If there is a rate for all models without a rate of their own, these models share
        one task queue. The shared rate is the last item of the list, with the model name `ALL_MODELS`.
        """
        rates, models = self.allocation, self._models
        own = [(model, rates.of(model)) for model in sorted(models & rates.own.keys())]
        found = [(model, inference_queue(safe_name(model)), pacing) for model, pacing in own if pacing]
        return [*found, (ALL_MODELS, DISPATCH_QUEUE, rates.shared)] if rates.shared else found

    async def other_queue(self, model: str, queue: str) -> str:
        """Return the Temporal task queue to which the model's slices must move from `queue`.

        If the slices can stay in `queue`, the result is empty. Before a move, the rates are read again from
        the table, because two workers with different rates could move a slice back and forth. If the rates
        cannot be read, the slices stay.
        """
        if not self._rates.target_queue(model, queue) or not await self.try_refresh():
            return ""
        return self._rates.target_queue(model, queue)

    async def refresh(self) -> None:
        """Read the rate limits from the table and apply them. If this fails, the earlier limits stay in
        effect.

        Raises:
            Exception: the database is unreachable. The constructor's argument `unavailable` names the class
                of this exception.
            RatesConflict: the limits of single models use up the limit over all models, so that too little is
                left for the other models.
        """
        changes = {row.model: row.requests_per_second for row in await self._table.all()}
        rates = effective_rates(self._settings.rates, changes)
        rates.check_remainder()
        self._take(rates)

    async def try_refresh(self) -> bool:
        """Refresh the rate limits. Return False if this failed; the earlier limits then stay in effect.

        An error is logged once. It is not logged again if the next call fails with the same error.
        """
        try:
            await self.refresh()
        except (self._unavailable, RatesConflict) as error:
            if str(error) != self._complaint:
                logger.warning(
                    "rates cannot be read: the last known rates stay in effect", extra={"error": str(error)}
                )
            self._complaint = str(error)
            return False
        self._complaint = ""
        return True

    async def run(self) -> None:
        """Refresh the rate limits every few seconds until cancelled. Errors are logged."""
        while True:
            await self.try_refresh()
            await asyncio.sleep(_REFRESH_SECONDS)

    def _take(self, rates: RateTable) -> None:
        self._rates, self._models = rates, self._served()
        # While no model is known, subtract all own rates. The other models then get too little, not too much.
        known = self._models or rates.entries
        self.allocation = allocate_rates(rates, known, self._settings.slice_seconds)
