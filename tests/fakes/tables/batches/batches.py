"""Fake table of batches in memory."""

from datetime import datetime

from batchwright.contracts.model_registry.price_config import PriceConfig
from batchwright.contracts.temporal_payloads.batch import BatchOrder, ErrorCount, ModelCounts
from batchwright.contracts.temporal_payloads.output_copies import OutputCopy, OutputCopyState
from batchwright.contracts.terms import BatchStatus, Usage
from batchwright.database.errors import UnknownBatch
from batchwright.database.records import BatchRow
from batchwright.database.tables.batches.batch_records import add_reported
from batchwright.database.tables.batches.batches import BatchesTable
from batchwright.database.tables.batches.waiting_reasons import WaitingRow
from batchwright.rules.batch_states import LIVE_STATES
from tests.fakes.tables.calls import end_calls
from tests.fakes.tables.rows import (
    Rows,
    add_sample,
    not_before,
    per_model,
    slices,
    usage_per_model,
)
from tests.fakes.tables.webhooks import record_event


class MemoryBatches(BatchesTable):
    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    async def upsert(self, order: BatchOrder) -> BatchRow:
        if (order.tenant, order.batch_id) in self._rows.enter().deleted:
            raise UnknownBatch(order.batch_id)
        fresh = BatchRow(order=order, status=BatchStatus.VALIDATING)
        return self.seen(self._rows.enter().batches.setdefault((order.tenant, order.batch_id), fresh))

    async def get(self, tenant: str, batch_id: str) -> BatchRow | None:
        row = self._rows.enter().batches.get((tenant, batch_id))
        return row and self.seen(row)

    def with_forecast(self, row: BatchRow) -> BatchRow:
        if row.status is not BatchStatus.IN_PROGRESS:
            return row
        forecast = self._rows.forecasts.get((row.order.tenant, row.order.batch_id))
        return row.model_copy(update={"forecast": forecast})

    async def get_with_reasons(
        self, tenant: str, batch_id: str, at: datetime
    ) -> tuple[BatchRow, list[WaitingRow]] | None:
        row, waiting = await self.get(tenant, batch_id), self._rows.waiting
        mine = [waiting[key] for key in sorted(waiting) if key[:2] == (tenant, batch_id)]
        if row is None:
            return None
        return self.with_forecast(row), [each for each in mine if each.until > at]

    async def request_cancel(self, tenant: str, batch_id: str, at: datetime) -> BatchRow | None:
        row = self._rows.enter().batches.get((tenant, batch_id))
        if row is not None and row.status in LIVE_STATES and row.cancel_requested_at is None:
            self.put(row, cancel_requested_at=not_before(row, at))
        return await self.get(tenant, batch_id)

    async def set_max_cost(self, tenant: str, batch_id: str, max_cost: str | None) -> bool:
        row = self.find(BatchStatus.IN_PROGRESS, tenant, batch_id)
        if row is None or row.cancel_requested_at is not None or row.cap_reached_at is not None:
            return False
        self.put(row, order=row.order.model_copy(update={"max_cost": max_cost}))
        return True

    async def claim_pause_or_resume(self, tenant: str, batch_id: str, max_changes: int) -> int | None:
        counts, place = self._rows.enter().pause_changes, (tenant, batch_id)
        row, failed = self._rows.batches.get(place), self._rows.failed_pause_changes[place]
        if row is None or row.status not in LIVE_STATES or counts[place] - failed >= max_changes:
            return None
        counts[place] += 1
        return counts[place]

    async def release_pause_or_resume(self, tenant: str, batch_id: str) -> None:
        rows = self._rows.enter()
        row = rows.batches.get((tenant, batch_id))
        if row is not None and row.status in LIVE_STATES:
            rows.failed_pause_changes[tenant, batch_id] += 1

    async def record_output_copy(self, tenant: str, batch_id: str, copy: OutputCopy) -> None:
        row = self._rows.enter().batches.get((tenant, batch_id))
        if row is None or not row.status.is_terminal or row.order.output_location is None:
            return
        state = OutputCopyState.PENDING if row.output_copy is None else row.output_copy.state
        succeeds_late = (state, copy.state) == (OutputCopyState.FAILED, OutputCopyState.WRITTEN)
        if state is OutputCopyState.PENDING or succeeds_late:
            self.put(row, output_copy=copy)

    async def start(
        self,
        tenant: str,
        batch_id: str,
        *,
        total: int,
        models: list[ModelCounts],
        at: datetime,
        unserved: int = 0,
        completed: int = 0,
        began_at: datetime | None = None,
        errors: list[ErrorCount] | None = None,
        prices: dict[str, PriceConfig] | None = None,
    ) -> bool:
        row = self.find(BatchStatus.VALIDATING, tenant, batch_id)
        if row is None:
            return False
        status, time = BatchStatus.IN_PROGRESS, not_before(row, at)
        settled = {"completed": completed, "failed": unserved, "ingestion_errors": errors or []}
        began = {"in_progress_at": time, "ingestion_began_at": began_at, "prices": prices or {}}
        self.put(row, status=status, total=total, models=models, **settled, **began)
        add_sample(self._rows, tenant, batch_id, time)
        return True

    async def add_attempt(self, tenant: str, batch_id: str, prefix: str, size: int) -> None:
        row = self._rows.enter().batches.get((tenant, batch_id))
        if row is not None and row.status in LIVE_STATES:
            self._rows.attempts.setdefault((tenant, batch_id, prefix), size)

    async def remove_attempt(self, tenant: str, batch_id: str, prefix: str) -> None:
        self._rows.enter().attempts.pop((tenant, batch_id, prefix), None)

    async def start_finalizing(self, tenant: str, batch_id: str, at: datetime) -> bool:
        row = self.find(BatchStatus.IN_PROGRESS, tenant, batch_id)
        if row is None:
            return False
        time = not_before(row, at)
        self.put(row, status=BatchStatus.FINALIZING, finalizing_at=time)
        add_sample(self._rows, tenant, batch_id, time)
        return True

    def find(self, status: BatchStatus, tenant: str, batch_id: str) -> BatchRow | None:
        row = self._rows.enter().batches.get((tenant, batch_id))
        return row if row is not None and row.status is status else None

    def put(self, row: BatchRow, **changes: object) -> BatchRow:
        changed = row.model_copy(update=changes)
        self._rows.batches[row.order.tenant, row.order.batch_id] = changed
        end_calls(self._rows, changed)
        if changed.order.policy.rolling is not None:
            return changed
        if changed.status is not row.status and changed.status is not BatchStatus.FINALIZING:
            at = getattr(changed, f"{changed.status}_at")
            record_event(self._rows, changed.order, f"batch.{changed.status}", at)
        return changed

    def seen(self, row: BatchRow, *, in_list: bool = False) -> BatchRow:
        if row.status not in LIVE_STATES:
            return row
        progress = slices(self._rows, row.order.tenant, row.order.batch_id)
        usage = sum((of.usage for of in progress), Usage())
        errors = [
            error.model_copy(update={"model": of.model})
            for of in sorted(progress, key=lambda of: of.number)
            for error in of.errors
        ]
        return add_reported(row, per_model(progress), [] if in_list else errors).model_copy(
            update={"usage": usage, "model_usage": usage_per_model(progress)}
        )
