"""A fake of the operations that end batches in the database, in memory."""

from datetime import datetime

from batchwright.contracts.terms import BatchStatus, ValidationError
from batchwright.database.errors import UnknownBatch
from batchwright.database.records import BatchOutcome, BatchRow, EndedBatch
from batchwright.database.tables.batches.batch_ends import BatchEnds
from batchwright.database.tables.batches.batch_records import final_counts
from batchwright.database.tables.batches.dead_letters import StoredDeadLetter
from batchwright.rules.batch_states import LIVE_STATES, cancel_takes_precedence
from tests.fakes.tables.batches.batches import MemoryBatches
from tests.fakes.tables.rows import (
    Rows,
    not_before,
    slices,
)


class MemoryBatchEnds(BatchEnds):
    def __init__(self, rows: Rows) -> None:
        self._rows, self._batches = rows, MemoryBatches(rows)

    async def fail_validation(
        self, tenant: str, batch_id: str, *, errors: list[ValidationError], total: int, at: datetime
    ) -> bool:
        row = self._batches.find(BatchStatus.VALIDATING, tenant, batch_id)
        if row is None:
            return False
        self._forget(tenant, batch_id)
        self._batches.put(
            row, status=BatchStatus.FAILED, failed_at=not_before(row, at), errors=errors, total=total
        )
        return True

    async def finish(self, tenant: str, batch_id: str, outcome: BatchOutcome, at: datetime) -> EndedBatch:
        row = await self._row(tenant, batch_id)
        if row.status not in LIVE_STATES or cancel_takes_precedence(
            outcome.status, row.cancel_requested_at, at
        ):
            return EndedBatch(row, moved=False)
        self._insert_files(row, outcome)
        return EndedBatch(self._close(row, outcome, at), moved=True)

    async def add_files(self, tenant: str, batch_id: str, outcome: BatchOutcome) -> EndedBatch:
        row = await self._row(tenant, batch_id)
        if not row.files_pending:
            return EndedBatch(row, moved=False)
        self._insert_files(row, outcome)
        changed = self._batches.put(row, files_pending_until=None, **_files_and_counts(row, outcome))
        return EndedBatch(changed, moved=True)

    async def abandon_files(
        self,
        tenant: str,
        batch_id: str,
        errors: list[ValidationError],
        *,
        total: int = 0,
        keep_until: datetime | None = None,
    ) -> EndedBatch:
        row = await self._row(tenant, batch_id)
        if not row.files_pending:
            return EndedBatch(row, moved=False)
        changes = {"errors": errors, "total": max(row.total, total), "results_kept_until": keep_until}
        return EndedBatch(self._batches.put(row, files_pending_until=None, **changes), moved=True)

    async def end_without_files(
        self,
        tenant: str,
        batch_id: str,
        status: BatchStatus,
        errors: list[ValidationError],
        at: datetime,
        keep_until: datetime | None = None,
        files_until: datetime | None = None,
    ) -> EndedBatch:
        row = await self._row(tenant, batch_id)
        if row.status not in LIVE_STATES:
            return EndedBatch(row, moved=False)
        row = self._batches.put(row, results_kept_until=keep_until, files_pending_until=files_until)
        outcome = BatchOutcome(
            status=status,
            completed=row.completed,
            failed=row.failed,
            usage=row.usage,
            model_usage=row.model_usage,
            errors=errors,
            errors_summary=row.errors_summary,
        )
        return EndedBatch(self._close(row, outcome, at), moved=True)

    def _insert_files(self, row: BatchRow, outcome: BatchOutcome) -> None:
        order = row.order
        for file in (outcome.output, outcome.error):
            if file is not None:
                self._rows.files[order.tenant, file.id] = file
        for dead_letter in outcome.dead_letters:
            self._rows.dead_letters[dead_letter.id] = StoredDeadLetter(
                order.tenant, order.batch_id, dead_letter
            )

    def _close(self, row: BatchRow, outcome: BatchOutcome, at: datetime) -> BatchRow:
        time = not_before(row, at)
        cancelled = outcome.status is BatchStatus.CANCELLED
        self._forget(row.order.tenant, row.order.batch_id)
        return self._batches.put(
            row,
            status=outcome.status,
            **{f"{outcome.status}_at": time},
            cancel_requested_at=row.cancel_requested_at or (time if cancelled else None),
            errors=outcome.errors,
            **_files_and_counts(row, outcome),
        )

    async def _row(self, tenant: str, batch_id: str) -> BatchRow:
        row = await self._batches.get(tenant, batch_id)
        if row is None:
            raise UnknownBatch(batch_id)
        return row

    def _forget(self, tenant: str, batch_id: str) -> None:
        self._rows.forecasts.pop((tenant, batch_id), None)
        for progress in slices(self._rows, tenant, batch_id):
            del self._rows.progress[tenant, batch_id, progress.model, progress.number]
        for key in [key for key in self._rows.waiting if key[:2] == (tenant, batch_id)]:
            del self._rows.waiting[key]
        for attempt in [key for key in self._rows.attempts if key[:2] == (tenant, batch_id)]:
            del self._rows.attempts[attempt]


def _files_and_counts(row: BatchRow, outcome: BatchOutcome) -> dict[str, object]:
    return {
        "output_file_id": outcome.output and outcome.output.id,
        "error_file_id": outcome.error and outcome.error.id,
        "total": max(row.total, outcome.completed + outcome.failed),
        "completed": outcome.completed,
        "failed": outcome.failed,
        "usage": outcome.usage,
        "model_usage": outcome.model_usage,
        "models": final_counts(row.models, outcome.models),
        "errors_summary": outcome.errors_summary,
    }
