"""Fake table of forecasts, in memory."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from batchwright.contracts.openai import BatchStatus
from batchwright.database.tables.batch_records import add_reported
from batchwright.database.tables.forecasts import ForecastRow, ForecastsTable, LiveWork
from batchwright.database.tables.waiting_reasons import WaitingSource
from tests.fakes.tables.rows import Rows, per_model, slices


class MemoryForecasts(ForecastsTable):
    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    async def work(self, at: datetime) -> list[LiveWork]:
        found: list[LiveWork] = []
        for row in self._rows.enter().batches.values():
            order = row.order
            pause = self._rows.waiting.get((order.tenant, order.batch_id, "", WaitingSource.USER))
            if (
                row.status is not BatchStatus.IN_PROGRESS
                or row.cancel_requested_at is not None
                or row.in_progress_at is None
                or order.deadline <= at
                or (pause is not None and pause.until > at)
            ):
                continue
            quota = self._rows.quotas.get(order.tenant)
            weight = order.weight if quota is None or quota.own.weight is None else quota.own.weight
            seen = add_reported(row, per_model(slices(self._rows, order.tenant, order.batch_id)), [])
            for before, count in zip(row.models, seen.models, strict=False):
                left = count.lines - count.duplicates - count.completed - count.failed
                if left > 0:
                    found.append(
                        LiveWork(
                            tenant=order.tenant,
                            batch_id=order.batch_id,
                            model=count.model,
                            created_at=order.created_at,
                            deadline=order.deadline,
                            in_progress_at=row.in_progress_at,
                            priority=order.priority,
                            weight=weight,
                            settled=count.completed + count.failed - before.completed - before.failed,
                            lines_left=left,
                        )
                    )
        return found

    async def publish(self, rows: Sequence[ForecastRow], at: datetime) -> frozenset[str]:
        written: set[str] = set()
        for row in rows:
            batch = self._rows.enter().batches.get((row.tenant, row.batch_id))
            if batch is None or batch.status is not BatchStatus.IN_PROGRESS:
                continue
            before = self._rows.forecasts.get((row.tenant, row.batch_id))
            if before is None or before.made_at <= at - timedelta(seconds=10):
                self._rows.forecasts[row.tenant, row.batch_id] = row.forecast
                written.add(row.batch_id)
        return frozenset(written)
