"""Fake table of the progress of batches in memory."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

from batchwright.contracts.terms import BatchStatus
from batchwright.database.records import SliceProgress
from batchwright.database.tables.batches.batch_snapshots import BatchKey
from batchwright.database.tables.batches.progress import (
    BatchSpending,
    ProgressSample,
    ProgressTable,
    SettledLines,
    SliceKey,
)
from batchwright.rules.batch_states import LIVE_STATES
from batchwright.rules.token_costs import amount_of, total_cost
from tests.fakes.tables.rows import (
    Rows,
    add_sample,
    slices,
    usage_per_model,
)


class MemoryProgress(ProgressTable):
    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    async def record(self, rows: list[SliceProgress]) -> None:
        self._rows.enter()
        for row in rows:
            key = (row.tenant, row.batch_id, row.model, row.number)
            batch, before = self._rows.batches.get(key[:2]), self._rows.progress.get(key)
            if batch is None or batch.status not in LIVE_STATES:
                continue
            if before is None or (row.generation, row.attempt) >= (before.generation, before.attempt):
                self._rows.progress[key] = row

    async def slices(self, tenant: str, batch_id: str) -> dict[tuple[str, int], SettledLines]:
        found = slices(self._rows.enter(), tenant, batch_id)
        return {(each.model, each.number): SettledLines(each.completed, each.failed) for each in found}

    async def spending(self, batches: Mapping[BatchKey, Sequence[SliceKey]]) -> dict[BatchKey, BatchSpending]:
        found: dict[BatchKey, BatchSpending] = {}
        for key, left_out in batches.items():
            row = self._rows.enter().batches.get(key)
            if row is not None and row.order.max_cost is not None:
                reported = [
                    each
                    for each in slices(self._rows, *key)
                    if SliceKey(each.model, each.number) not in left_out
                ]
                amount = total_cost(usage_per_model(reported), row.prices)
                cap, is_ending = amount_of(row.order.max_cost), row.cap_reached_at is not None
                found[key] = BatchSpending(cap, amount, is_ending)
        return found

    async def reach_cap(self, batch: BatchKey, amount: int) -> bool:
        row = self._rows.enter().batches.get(batch)
        if row is None or row.status is not BatchStatus.IN_PROGRESS or row.order.max_cost is None:
            return False
        if amount_of(row.order.max_cost) > amount:
            return False
        at = row.cap_reached_at or datetime.now(UTC)
        self._rows.batches[batch] = row.model_copy(update={"cap_reached_at": at})
        return True

    async def sample(self, at: datetime) -> None:
        for key, row in self._rows.enter().batches.items():
            known = self._rows.samples.get(key, [])
            if row.status is not BatchStatus.IN_PROGRESS or not known:
                continue
            if at - known[-1].at >= max(timedelta(seconds=10), (at - known[0].at) / 40):
                add_sample(self._rows, *key, at)

    async def samples(self, tenant: str, batch_id: str) -> list[ProgressSample]:
        return list(self._rows.enter().samples.get((tenant, batch_id), []))
