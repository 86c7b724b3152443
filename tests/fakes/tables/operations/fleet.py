"""Fake of the queries that count live batches and their work over all tenants, in memory."""

from collections import Counter
from datetime import datetime

from batchwright.contracts.terms import BatchStatus
from batchwright.database.records import BatchRow
from batchwright.database.tables.batches.batch_records import add_reported
from batchwright.database.tables.batches.waiting_reasons import WaitingSource
from batchwright.database.tables.operations.fleet import LiveBatch, LiveBatches, ModelBacklog, ModelDeadline
from batchwright.rules.batch_states import LIVE_STATES
from tests.fakes.tables.rows import Rows, per_model, slices


class MemoryLiveBatches(LiveBatches):
    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    async def live(self) -> list[LiveBatch]:
        return [_live_batch(row, self._seen(row)) for row in self._live()]

    async def backlogs(self, now: datetime) -> list[ModelBacklog]:
        return [
            ModelBacklog(
                row.order.tenant,
                row.order.batch_id,
                count.model,
                left,
                row.order.deadline,
                row.order.priority,
                row.order.starts_at,
                is_paused=self._is_paused(row, now),
                held=self._rows.held(row.order.tenant, count.model),
            )
            for row in self._live()
            if row.status is BatchStatus.IN_PROGRESS and row.cancel_requested_at is None
            for count in self._seen(row).models
            if (left := count.lines - count.duplicates - count.completed - count.failed) > 0
        ]

    async def awaited_models(self, now: datetime) -> dict[str, dict[str, int]]:
        since: dict[tuple[str, str], datetime] = {}
        unsettled: Counter[tuple[str, str]] = Counter()
        for row in self._live():
            if row.status is not BatchStatus.IN_PROGRESS:
                continue
            for count, seen in zip(row.models, self._seen(row).models, strict=True):
                if count.lines - count.duplicates > count.completed + count.failed:
                    key = row.order.tenant, count.model
                    since[key] = min(row.order.starts_at, since.get(key, row.order.starts_at))
                    is_unsettled = seen.lines - seen.duplicates > seen.completed + seen.failed
                    if is_unsettled and self._may_send(row, now) and not self._rows.held(*key):
                        unsettled[key] += 1
        places: dict[str, tuple[bool, int, datetime]] = {}
        counts: Counter[tuple[str, bool]] = Counter()
        for key in sorted(since, key=lambda key: (since[key], key[1])):
            tenant, model = key
            counts[tenant, key in unsettled] += 1
            place = (key not in unsettled, counts[tenant, key in unsettled], since[key])
            places[model] = min(place, places.get(model, place))
        return {
            model: {tenant: batches for (tenant, name), batches in unsettled.items() if name == model}
            for model in sorted(places, key=lambda model: (places[model], model))
        }

    async def lines_left(self) -> dict[str, int]:
        left: Counter[str] = Counter()
        for row in self._live():
            for count in self._seen(row).models:
                left[count.model] += count.lines - count.duplicates - count.completed - count.failed
        return dict(+left)

    async def lines_due(self, now: datetime) -> list[ModelDeadline]:
        due: Counter[tuple[str, datetime]] = Counter()
        for row in self._live():
            if self._may_send(row, now):
                for count in self._seen(row).models:
                    if self._rows.held(row.order.tenant, count.model):
                        continue
                    due[count.model, row.order.deadline] += (
                        count.lines - count.duplicates - count.completed - count.failed
                    )
        return [ModelDeadline(model, deadline, lines) for (model, deadline), lines in (+due).items()]

    def _may_send(self, row: BatchRow, now: datetime) -> bool:
        return (
            row.status is BatchStatus.IN_PROGRESS
            and row.cancel_requested_at is None
            and row.order.deadline > now
            and not self._is_paused(row, now)
        )

    def _is_paused(self, row: BatchRow, now: datetime) -> bool:
        pause = self._rows.waiting.get((row.order.tenant, row.order.batch_id, "", WaitingSource.USER))
        return pause is not None and pause.until > now

    def _live(self) -> list[BatchRow]:
        return [row for row in self._rows.enter().batches.values() if row.status in LIVE_STATES]

    def _seen(self, row: BatchRow) -> BatchRow:
        return add_reported(row, per_model(slices(self._rows, row.order.tenant, row.order.batch_id)), [])


def _live_batch(stored: BatchRow, seen: BatchRow) -> LiveBatch:
    times = (stored.cancel_requested_at, stored.finalizing_at, stored.in_progress_at, stored.order.starts_at)
    return LiveBatch(
        tenant=stored.order.tenant,
        id=stored.order.batch_id,
        status=stored.status if stored.cancel_requested_at is None else BatchStatus.CANCELLING,
        created_at=stored.order.starts_at,
        deadline=stored.order.deadline,
        entered_at=next(time for time in times if time is not None),
        lines=stored.total
        - stored.completed
        - stored.failed
        - sum(count.duplicates for count in stored.models),
        settled=seen.completed + seen.failed - stored.completed - stored.failed,
        in_progress_at=stored.in_progress_at,
    )
