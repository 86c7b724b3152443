"""The cost so far of each batch that has a slice in this process, compared with the cap on the batch's cost.

A process adds the cost of its own slices at once. It reads the cost of slices on other workers from the
database at each refresh. A batch may cost a little more than its cap for two reasons. Some requests are in
flight when the cap is reached. And the other workers stop sending only about three seconds later.

If the cap is reached, the batch ends in two steps:

1. The process sends no more lines of the batch.
2. At its next refresh, the process records in the database that the cap is reached. From then on, the API
   accepts no change of the cap, and the slices of the batch end.

If the cap is raised before step 2, nothing is recorded, and the process sends lines again.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from batchwright.contracts.temporal_payloads.execution import SliceRequest
from batchwright.database.tables.batches.batch_snapshots import BatchKey
from batchwright.database.tables.batches.progress import ProgressTable, SliceKey
from batchwright.rules.results.token_usage import TokenUsage
from batchwright.rules.token_costs import UnitPrices

# After its end, a slice is still counted here, until its last report is certainly in the database.
_REPORTED_SECONDS = 10.0


@dataclass(eq=False)
class _BatchSpending:
    """The cost of one batch so far, as this process knows it.

    `here` is the cost of the batch's slices in this process. `elsewhere` is the cost of its slices on other
    workers, as it was last read from the database.
    """

    cap: int | None = None
    elsewhere: int = 0
    here: int = 0
    is_read: bool = False
    is_ending: bool = False  # the database has recorded that the cap is reached
    slices: dict[SliceKey, "SliceCost"] = field(default_factory=dict[SliceKey, "SliceCost"])

    @property
    def is_over_cap(self) -> bool:
        return self.is_ending or (self.cap is not None and self.elsewhere + self.here >= self.cap)

    def add_up(self) -> None:
        self.here = sum(cost.amount - cost.counted_elsewhere for cost in self.slices.values())


class SliceCost:
    """The cost of one slice (a part of a batch's lines) so far. Only lines that succeeded cost something.

    Amounts are in 10^-12 of the currency's unit (`rules/token_costs.py`).

    Attributes:
        amount: cost of the slice, including its earlier turns (attempts to send the slice).
        counted_elsewhere: the part of `amount` that is already in the batch's cost that was read from the
            database. This part is subtracted from `amount`, because it would count twice.
        ended_at: when the present turn ended, in seconds of the clock of `BatchCosts`; None while the turn
            runs.
    """

    def __init__(self, batch: _BatchSpending, prices: UnitPrices) -> None:
        self._batch, self._prices = batch, prices
        self.amount = self.counted_elsewhere = 0
        self.ended_at: float | None = None

    @property
    def is_over_cap(self) -> bool:
        """True if the batch has reached the cap on its cost, so that none of its lines may be sent.

        It can become False again, if the cap is raised before `ends_batch` is True.
        """
        return self._batch.is_over_cap

    @property
    def ends_batch(self) -> bool:
        """True if the database has recorded that the cap is reached, which ends the batch.

        The cap can then no longer be raised.
        """
        return self._batch.is_ending

    def add(self, usage: TokenUsage) -> int:
        """Count the cost of a line that has succeeded, from its tokens. Return the cost."""
        cost = self._prices.cost(usage)
        self.amount += cost
        self._batch.here += cost
        return cost


class BatchCosts:
    """The cost of each batch that has a slice in this process, compared with the batch's cap on its cost."""

    def __init__(self, table: ProgressTable, clock: Callable[[], float] = time.monotonic) -> None:
        self._table, self._clock = table, clock
        self._batches: dict[BatchKey, _BatchSpending] = {}

    async def track(self, request: SliceRequest, usage: TokenUsage, requests: int) -> SliceCost | None:
        """Start to count the cost of a slice, and return the object that counts it.

        Return None if the slice's model has no prices.

        After the turn (the present attempt to send the slice's lines), the caller must pass the returned
        object to `end`. If this is the batch's only slice in this process, this method first reads the
        batch's cap and its cost so far from the database.

        Args:
            usage: tokens that earlier turns of the slice have used.
            requests: number of lines that succeeded in earlier turns.

        Raises:
            DatabaseUnavailable: the database does not respond.
        """
        if request.prices is None:
            return None
        key, place = BatchKey(request.tenant, request.batch_id), SliceKey(request.model, request.number)
        batch = self._batches.setdefault(key, _BatchSpending())
        if not batch.is_read:
            await self._read({key: batch})
            self._batches[key] = batch
        prices, before = UnitPrices.of(request.prices), batch.slices.get(place)
        cost = batch.slices[place] = SliceCost(batch, prices)
        cost.amount = prices.cost(usage, requests)
        cost.counted_elsewhere = cost.amount if before is None else before.counted_elsewhere
        batch.add_up()
        return cost

    def end(self, cost: SliceCost) -> None:
        """Record that the turn of a slice (an attempt to send its lines) has ended.

        In the next `_REPORTED_SECONDS`, this process still uses the cost that it has counted itself. After
        that, the database certainly contains the whole cost of the turn, and the cost is read from there.
        """
        cost.ended_at = self._clock()

    async def refresh(self) -> None:
        """Read the caps of all tracked batches, and the cost of their slices on other workers.

        If a batch has reached its cap, record this in the database.

        Raises:
            DatabaseUnavailable: the database does not respond. The last known amounts stay in use.
        """
        for key, batch in list(self._batches.items()):
            if batch.is_read and not any(map(self._is_counted, batch.slices.values())):
                del self._batches[key]
        await self._read(dict(self._batches))

    async def _read(self, batches: Mapping[BatchKey, _BatchSpending]) -> None:
        if not batches:
            return
        counted = {
            key: {place: cost for place, cost in batch.slices.items() if self._is_counted(cost)}
            for key, batch in batches.items()
        }
        found = await self._table.spending({key: list(slices) for key, slices in counted.items()})
        for key, batch in batches.items():
            read, slices = found.get(key), counted[key]
            batch.is_read = True
            batch.cap, batch.elsewhere, batch.is_ending = (None, 0, False) if read is None else read
            for place, cost in list(batch.slices.items()):
                if slices.get(place) is cost:
                    cost.counted_elsewhere = 0
                elif not self._is_counted(cost):
                    del batch.slices[place]
            batch.add_up()
        for key, batch in batches.items():
            if batch.is_over_cap and not batch.is_ending:
                batch.is_ending = await self._table.reach_cap(key, batch.elsewhere + batch.here)

    def _is_counted(self, cost: SliceCost) -> bool:
        return cost.ended_at is None or self._clock() - cost.ended_at < _REPORTED_SECONDS
