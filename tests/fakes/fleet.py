"""What is counted over all tenants, in memory."""

from collections import Counter

from batchwright.contracts.openai import BatchStatus
from batchwright.database.base import FleetView
from batchwright.database.counts import add_told
from batchwright.database.rows import BatchRow, LiveBatch, Unsettled
from batchwright.rules.states import LIVE
from tests.fakes.rows import Rows, per_model, slices


class MemoryFleet(FleetView):
    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    async def live(self) -> list[LiveBatch]:
        return [_live_batch(row, self._seen(row)) for row in self._live()]

    async def unsettled(self) -> list[Unsettled]:
        return [
            Unsettled(row.order.tenant, row.order.batch_id, count.model, left, row.order.expires_at)
            for row in self._live()
            if row.status is BatchStatus.IN_PROGRESS and row.cancel_requested_at is None
            for count in self._seen(row).models
            if (left := count.lines - count.duplicates - count.completed - count.failed) > 0
        ]

    async def lines_left(self) -> dict[str, int]:
        left: Counter[str] = Counter()
        for row in self._live():
            for count in self._seen(row).models:
                left[count.model] += count.lines - count.duplicates - count.completed - count.failed
        return dict(+left)

    def _live(self) -> list[BatchRow]:
        return [row for row in self._rows.enter().batches.values() if row.status in LIVE]

    def _seen(self, row: BatchRow) -> BatchRow:
        return add_told(row, per_model(slices(self._rows, row.order.tenant, row.order.batch_id)))


def _live_batch(stored: BatchRow, seen: BatchRow) -> LiveBatch:
    times = (stored.cancel_requested_at, stored.finalizing_at, stored.in_progress_at, stored.order.created_at)
    return LiveBatch(
        tenant=stored.order.tenant,
        id=stored.order.batch_id,
        status=stored.status if stored.cancel_requested_at is None else BatchStatus.CANCELLING,
        created_at=stored.order.created_at,
        expires_at=stored.order.expires_at,
        entered_at=next(time for time in times if time is not None),
        lines=stored.total
        - stored.completed
        - stored.failed
        - sum(count.duplicates for count in stored.models),
        settled=seen.completed + seen.failed - stored.completed - stored.failed,
        begun_at=stored.in_progress_at,
    )
