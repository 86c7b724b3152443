"""Fakes of the queries that list batches or read several batches, in memory."""

from collections.abc import Collection
from datetime import datetime

from batchwright.contracts.terms import BatchStatus, Endpoint
from batchwright.database.records import BatchRow
from batchwright.database.tables.batches.batch_list import BatchList
from batchwright.database.tables.batches.batch_snapshots import BatchKey, BatchSnapshot, BatchSnapshots
from batchwright.rules.batch_filters import NO_FILTERS, BatchFilters
from batchwright.rules.batch_states import LIVE_STATES, visible_status
from batchwright.rules.dispatch.fair_queue import fresh_fairness_key
from batchwright.rules.planning.cost_estimate import OutputHistory
from tests.fakes.tables.batches.batches import MemoryBatches
from tests.fakes.tables.rows import (
    Rows,
    position,
)


class MemoryBatchList(BatchList):
    def __init__(self, rows: Rows) -> None:
        self._rows, self._batches = rows, MemoryBatches(rows)

    async def page(
        self, tenant: str, *, limit: int, after: str | None, filters: BatchFilters = NO_FILTERS
    ) -> tuple[list[BatchRow], bool]:
        rows = self._oldest_first(tenant)[::-1]
        rows = rows[position([row.order.batch_id for row in rows], after) :]
        rows = [row for row in rows if _matches(row, filters)]
        return self._shown(rows[:limit]), len(rows) > limit

    async def page_before(
        self, tenant: str, before: str, *, limit: int, endpoint: Endpoint
    ) -> tuple[list[BatchRow], bool]:
        rows = self._oldest_first(tenant)
        rows = rows[position([row.order.batch_id for row in rows], before) :]
        rows = [row for row in rows if row.order.endpoint is endpoint]
        return self._shown(rows[:limit][::-1]), len(rows) > limit

    async def count_live(self, tenant: str) -> int:
        rows = [row for row in self._rows.enter().batches.values() if row.order.policy.rolling is None]
        return sum(row.order.tenant == tenant and row.status in LIVE_STATES for row in rows)

    async def fairness_key(self, tenant: str, at: datetime) -> str:
        rows = [row for row in self._rows.enter().batches.values() if row.order.tenant == tenant]
        rows.sort(key=lambda row: (row.order.created_at, row.order.batch_id), reverse=True)
        for row in rows:
            is_sending = row.status in (BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS)
            if is_sending and row.cancel_requested_at is None and row.order.deadline > at:
                return row.order.policy.fairness_key
        stopped = (BatchStatus.CANCELLED, BatchStatus.EXPIRED)
        for row in rows:
            if row.status in stopped or row.cancel_requested_at is not None:
                return fresh_fairness_key(tenant, row.order.batch_id)
        return ""

    async def output_history(
        self, tenant: str, endpoint: Endpoint, models: Collection[str]
    ) -> dict[str, OutputHistory]:
        found: dict[str, OutputHistory] = {}
        for row in self._rows.enter().batches.values():
            for used in row.model_usage:
                is_own = row.order.tenant == tenant and row.order.endpoint is endpoint
                if is_own and used.model in models and used.requests:
                    before = found.get(used.model, OutputHistory(0, 0))
                    found[used.model] = OutputHistory(
                        before.requests + used.requests, before.output_tokens + used.output_tokens
                    )
        return found

    def _oldest_first(self, tenant: str) -> list[BatchRow]:
        rows = [row for row in self._rows.enter().batches.values() if row.order.tenant == tenant]
        rows = [row for row in rows if row.order.policy.rolling is None]
        return sorted(rows, key=lambda row: (row.order.created_at, row.order.batch_id))

    def _shown(self, rows: list[BatchRow]) -> list[BatchRow]:
        return [self._batches.with_forecast(self._batches.seen(row, in_list=True)) for row in rows]


def _matches(row: BatchRow, filters: BatchFilters) -> bool:
    shown = visible_status(row.status, cancel_requested=row.cancel_requested_at is not None)
    return (
        filters.status in (None, shown)
        and (filters.model is None or any(count.model == filters.model for count in row.models))
        and (filters.created_after is None or row.order.created_at >= filters.created_after)
        and (filters.created_before is None or row.order.created_at < filters.created_before)
        and filters.endpoint in (None, row.order.endpoint)
        and set(filters.metadata) <= set((row.order.metadata or {}).items())
    )


class MemoryBatchSnapshots(BatchSnapshots):
    def __init__(self, rows: Rows) -> None:
        self._batches = MemoryBatches(rows)

    async def read(self, keys: Collection[BatchKey], at: datetime) -> dict[BatchKey, BatchSnapshot]:
        found = {key: await self._batches.get_with_reasons(*key, at) for key in keys}
        return {key: BatchSnapshot(*each) for key, each in found.items() if each is not None}
