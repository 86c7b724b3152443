"""A database in memory, held to the same suite as PostgreSQL."""

from datetime import datetime

from batchwright.contracts.batch import BatchOrder
from batchwright.contracts.openai import BatchStatus, Usage, ValidationError
from batchwright.database.base import (
    BatchesTable,
    DatabaseLike,
    ProgressTable,
)
from batchwright.database.counts import add_told, as_ended
from batchwright.database.dead_letters_base import Buried
from batchwright.database.errors import UnknownBatch
from batchwright.database.rows import (
    BatchRow,
    ModelCount,
    Outcome,
    SliceProgress,
)
from batchwright.database.waiting_base import Waiting
from batchwright.rules.states import LIVE, cancel_comes_first
from tests.fakes.audits import MemoryAudits
from tests.fakes.callbacks import MemoryCallbacks
from tests.fakes.chances import MemoryChances
from tests.fakes.dead_letters import MemoryDeadLetters
from tests.fakes.files import MemoryFiles
from tests.fakes.fleet import MemoryFleet
from tests.fakes.models import MemoryModelChanges, MemoryModels, MemoryRates
from tests.fakes.quotas import MemoryQuotas
from tests.fakes.retention import MemoryRetention
from tests.fakes.rows import Rows, not_before, per_model, position, slices
from tests.fakes.tenants import TenantsAndKeys
from tests.fakes.uploads import UploadsAndClaims
from tests.fakes.waiting import MemoryWaiting
from tests.fakes.workers import MemoryWorkers


class MemoryBatches(BatchesTable):
    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    async def upsert(self, order: BatchOrder) -> BatchRow:
        fresh = BatchRow(order=order, status=BatchStatus.VALIDATING)
        return self._seen(self._rows.enter().batches.setdefault((order.tenant, order.batch_id), fresh))

    async def get(self, tenant: str, batch_id: str) -> BatchRow | None:
        row = self._rows.enter().batches.get((tenant, batch_id))
        return row and self._seen(row)

    async def get_waiting(
        self, tenant: str, batch_id: str, at: datetime
    ) -> tuple[BatchRow, list[Waiting]] | None:
        row, told = await self.get(tenant, batch_id), self._rows.waiting
        mine = [told[key] for key in sorted(told) if key[:2] == (tenant, batch_id)]
        return row and (row, [each for each in mine if each.until > at])

    async def page(self, tenant: str, *, limit: int, after: str | None) -> tuple[list[BatchRow], bool]:
        rows = [row for row in self._rows.enter().batches.values() if row.order.tenant == tenant]
        rows.sort(key=lambda row: (row.order.created_at, row.order.batch_id), reverse=True)
        rows = rows[position([row.order.batch_id for row in rows], after) :]
        return [self._seen(row) for row in rows[:limit]], len(rows) > limit

    async def count_live(self, tenant: str) -> int:
        rows = self._rows.enter().batches.values()
        return sum(row.order.tenant == tenant and row.status in LIVE for row in rows)

    async def note_cancel(self, tenant: str, batch_id: str, at: datetime) -> BatchRow | None:
        row = self._rows.enter().batches.get((tenant, batch_id))
        if row is not None and row.status in LIVE and row.cancel_requested_at is None:
            self._put(row, cancel_requested_at=not_before(row, at))
        return await self.get(tenant, batch_id)

    async def begin(
        self,
        tenant: str,
        batch_id: str,
        *,
        total: int,
        models: list[ModelCount],
        at: datetime,
        unserved: int = 0,
        completed: int = 0,
    ) -> bool:
        row = self._in(BatchStatus.VALIDATING, tenant, batch_id)
        if row is None:
            return False
        status, time = BatchStatus.IN_PROGRESS, not_before(row, at)
        settled = {"completed": completed, "failed": unserved}
        self._put(row, status=status, in_progress_at=time, total=total, models=models, **settled)
        return True

    async def fail_validation(
        self, tenant: str, batch_id: str, *, errors: list[ValidationError], total: int, at: datetime
    ) -> bool:
        row = self._in(BatchStatus.VALIDATING, tenant, batch_id)
        if row is None:
            return False
        self._put(row, status=BatchStatus.FAILED, failed_at=not_before(row, at), errors=errors, total=total)
        return True

    async def start_finalizing(self, tenant: str, batch_id: str, at: datetime) -> bool:
        row = self._in(BatchStatus.IN_PROGRESS, tenant, batch_id)
        if row is None:
            return False
        self._put(row, status=BatchStatus.FINALIZING, finalizing_at=not_before(row, at))
        return True

    async def finish(self, tenant: str, batch_id: str, outcome: Outcome, at: datetime) -> BatchRow:
        row = await self._row(tenant, batch_id)
        if row.status in LIVE and not cancel_comes_first(outcome.status, row.cancel_requested_at, at):
            row = self._close(row, outcome, at)
            for file in (outcome.output, outcome.error):
                if file is not None:
                    self._rows.files[tenant, file.id] = file
            for letter in outcome.dead_letters:
                self._rows.dead_letters[letter.id] = Buried(tenant, batch_id, letter)
        return row

    async def end(
        self,
        tenant: str,
        batch_id: str,
        status: BatchStatus,
        errors: list[ValidationError],
        at: datetime,
        keep_until: datetime | None = None,
    ) -> BatchRow:
        row = await self._row(tenant, batch_id)
        if row.status not in LIVE:
            return row
        row = self._put(row, results_kept_until=keep_until)
        told = Outcome(
            status=status, completed=row.completed, failed=row.failed, usage=row.usage, errors=errors
        )
        return self._close(row, told, at)

    def _close(self, row: BatchRow, outcome: Outcome, at: datetime) -> BatchRow:
        time = not_before(row, at)
        cancelled = outcome.status is BatchStatus.CANCELLED
        self._forget(row.order.tenant, row.order.batch_id)
        return self._put(
            row,
            status=outcome.status,
            **{f"{outcome.status}_at": time},
            cancel_requested_at=row.cancel_requested_at or (time if cancelled else None),
            output_file_id=outcome.output and outcome.output.id,
            error_file_id=outcome.error and outcome.error.id,
            errors=outcome.errors,
            total=max(row.total, outcome.completed + outcome.failed),
            completed=outcome.completed,
            failed=outcome.failed,
            usage=outcome.usage,
            models=as_ended(row.models, outcome.models),
        )

    async def _row(self, tenant: str, batch_id: str) -> BatchRow:
        row = await self.get(tenant, batch_id)
        if row is None:
            raise UnknownBatch(batch_id)
        return row

    def _in(self, status: BatchStatus, tenant: str, batch_id: str) -> BatchRow | None:
        row = self._rows.enter().batches.get((tenant, batch_id))
        return row if row is not None and row.status is status else None

    def _put(self, row: BatchRow, **changes: object) -> BatchRow:
        changed = row.model_copy(update=changes)
        self._rows.batches[row.order.tenant, row.order.batch_id] = changed
        return changed

    def _seen(self, row: BatchRow) -> BatchRow:
        if row.status not in LIVE:
            return row
        told = slices(self._rows, row.order.tenant, row.order.batch_id)
        usage = sum((of.usage for of in told), Usage())
        return add_told(row, per_model(told)).model_copy(update={"usage": usage})

    def _forget(self, tenant: str, batch_id: str) -> None:
        for told in slices(self._rows, tenant, batch_id):
            del self._rows.progress[tenant, batch_id, told.model, told.number]
        for key in [key for key in self._rows.waiting if key[:2] == (tenant, batch_id)]:
            del self._rows.waiting[key]


class MemoryProgress(ProgressTable):
    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    async def record(self, rows: list[SliceProgress]) -> None:
        self._rows.enter()
        for row in rows:
            key = (row.tenant, row.batch_id, row.model, row.number)
            batch, before = self._rows.batches.get(key[:2]), self._rows.progress.get(key)
            if batch is None or batch.status not in LIVE:
                continue
            if before is None or (row.generation, row.attempt) >= (before.generation, before.attempt):
                self._rows.progress[key] = row

    async def totals(self, tenant: str, batch_id: str) -> list[ModelCount]:
        row = await MemoryBatches(self._rows).get(tenant, batch_id)
        return [] if row is None else row.models


class MemoryDatabase(UploadsAndClaims, TenantsAndKeys, DatabaseLike):
    """`rows` is open to tests; `rows.failing = DatabaseUnavailable(...)` makes every call fail."""

    def __init__(self) -> None:
        self.rows = Rows()

    @property
    def files(self) -> MemoryFiles:
        return MemoryFiles(self.rows)

    @property
    def batches(self) -> MemoryBatches:
        return MemoryBatches(self.rows)

    @property
    def progress(self) -> MemoryProgress:
        return MemoryProgress(self.rows)

    @property
    def models(self) -> MemoryModels:
        return MemoryModels(self.rows)

    @property
    def workers(self) -> MemoryWorkers:
        return MemoryWorkers(self.rows)

    @property
    def rates(self) -> MemoryRates:
        return MemoryRates(self.rows)

    @property
    def quotas(self) -> MemoryQuotas:
        return MemoryQuotas(self.rows)

    @property
    def model_changes(self) -> MemoryModelChanges:
        return MemoryModelChanges(self.rows)

    @property
    def fleet(self) -> MemoryFleet:
        return MemoryFleet(self.rows)

    @property
    def chances(self) -> MemoryChances:
        return MemoryChances(self.rows)

    @property
    def dead_letters(self) -> MemoryDeadLetters:
        return MemoryDeadLetters(self.rows)

    @property
    def retention(self) -> MemoryRetention:
        return MemoryRetention(self.rows)

    @property
    def audits(self) -> MemoryAudits:
        return MemoryAudits(self.rows)

    @property
    def callbacks(self) -> MemoryCallbacks:
        return MemoryCallbacks(self.rows)

    @property
    def waiting(self) -> MemoryWaiting:
        return MemoryWaiting(self.rows)

    async def check(self) -> None:
        self.rows.enter()

    async def close(self) -> None:
        return None
