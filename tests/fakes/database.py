"""A database in memory, held to the same suite as PostgreSQL."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

from batchwright.contracts.batch import BatchOrder
from batchwright.contracts.openai import BatchStatus, Usage, ValidationError
from batchwright.contracts.registry import ModelConfig
from batchwright.database.base import (
    BatchesTable,
    DatabaseLike,
    FilesTable,
    ModelChangesTable,
    ModelsTable,
    ProgressTable,
    RatesTable,
)
from batchwright.database.counts import LIVE, add_told, as_ended
from batchwright.database.dead_letters_base import Buried
from batchwright.database.errors import FileInUse, UnknownBatch
from batchwright.database.rows import (
    BatchRow,
    FileRow,
    ModelChange,
    ModelCount,
    Outcome,
    RateChange,
    ServedModel,
    SliceProgress,
    WorkerBeat,
)
from batchwright.database.workers_base import WorkersTable
from batchwright.rules.states import cancel_comes_first
from batchwright.rules.traffic import LaneTraffic
from tests.fakes.audits import MemoryAudits
from tests.fakes.callbacks import MemoryCallbacks
from tests.fakes.chances import MemoryChances
from tests.fakes.dead_letters import MemoryDeadLetters
from tests.fakes.fleet import MemoryFleet
from tests.fakes.quotas import MemoryQuotas
from tests.fakes.retention import MemoryRetention
from tests.fakes.rows import Rows, not_before, per_model, position, slices
from tests.fakes.tenants import TenantsAndKeys
from tests.fakes.uploads import UploadsAndClaims
from tests.fakes.waiting import MemoryWaiting


class MemoryFiles(FilesTable):
    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    async def insert(self, row: FileRow) -> None:
        self._rows.enter().files[row.tenant, row.id] = row

    async def get(self, tenant: str, file_id: str) -> FileRow | None:
        row = self._rows.enter().files.get((tenant, file_id))
        return row if row is not None and self._is_known(row) else None

    async def page(
        self, tenant: str, *, purpose: str | None, limit: int, ascending: bool, after: str | None
    ) -> tuple[list[FileRow], bool]:
        rows = [row for row in self._rows.enter().files.values() if row.tenant == tenant]
        rows.sort(key=lambda row: (row.created_at, row.id), reverse=not ascending)
        rows = rows[position([row.id for row in rows], after) :]
        rows = [row for row in rows if purpose in (None, row.purpose) and self._is_known(row)]
        return rows[:limit], len(rows) > limit

    async def delete(self, tenant: str, file_id: str) -> FileRow | None:
        reader = self._rows.enter().reader_of(tenant, file_id)
        if reader is not None and (tenant, file_id) in self._rows.files:
            raise FileInUse(file_id, reader.order.batch_id)
        row = await self.get(tenant, file_id)
        if row is not None:
            del self._rows.files[tenant, file_id]
        return row

    def _is_known(self, row: FileRow) -> bool:
        if row.expires_at is None or row.expires_at > datetime.now(UTC):
            return True
        return self._rows.reader_of(row.tenant, row.id) is not None


class MemoryBatches(BatchesTable):
    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    async def upsert(self, order: BatchOrder) -> BatchRow:
        fresh = BatchRow(order=order, status=BatchStatus.VALIDATING)
        return self._seen(self._rows.enter().batches.setdefault((order.tenant, order.batch_id), fresh))

    async def get(self, tenant: str, batch_id: str) -> BatchRow | None:
        row = self._rows.enter().batches.get((tenant, batch_id))
        return row and self._seen(row)

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


class MemoryModels(ModelsTable):
    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    async def note(self, backend_url: str, names: list[str], at: datetime) -> None:
        models = self._rows.enter().models
        for url, name in list(models):
            if url == backend_url and name not in names:
                del models[url, name]
        for name in names:
            models[backend_url, name] = ServedModel(name=name, backend_url=backend_url, seen_at=at)

    async def served(self, backend_urls: list[str]) -> list[ServedModel]:
        models = [model for model in self._rows.enter().models.values() if model.backend_url in backend_urls]
        return sorted(models, key=lambda model: (model.name, model.backend_url))


class MemoryRates(RatesTable):
    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    async def all(self) -> list[RateChange]:
        return [row for _, row in sorted(self._rows.enter().rates.items())]

    async def change(
        self,
        model: str,
        requests_per_second: float | None,
        at: datetime,
        check: Callable[[list[RateChange]], None],
    ) -> list[RateChange]:
        rates = {name: row for name, row in self._rows.enter().rates.items() if name != model}
        if requests_per_second is not None:
            rates[model] = RateChange(model=model, requests_per_second=requests_per_second, changed_at=at)
        check([row for _, row in sorted(rates.items())])
        self._rows.rates = rates
        return await self.all()


class MemoryModelChanges(ModelChangesTable):
    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    async def all(self) -> list[ModelChange]:
        return [row for _, row in sorted(self._rows.enter().model_changes.items())]

    async def put(
        self,
        model: str,
        config: ModelConfig | None,
        at: datetime,
        check: Callable[[list[ModelChange]], None],
    ) -> list[ModelChange]:
        row = ModelChange(model=model, config=config, changed_at=at)
        return await self._take({**self._rows.enter().model_changes, model: row}, check)

    async def revert(self, model: str, check: Callable[[list[ModelChange]], None]) -> list[ModelChange]:
        known = self._rows.enter().model_changes
        return await self._take({name: row for name, row in known.items() if name != model}, check)

    async def _take(
        self, changes: dict[str, ModelChange], check: Callable[[list[ModelChange]], None]
    ) -> list[ModelChange]:
        check([row for _, row in sorted(changes.items())])
        self._rows.model_changes = changes
        return await self.all()


class MemoryWorkers(WorkersTable):
    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    async def beat(
        self,
        worker_id: str,
        stats: dict[str, float],
        at: datetime,
        registry: str = "",
        *,
        traffic: Sequence[LaneTraffic] = (),
        started_at: datetime | None = None,
    ) -> None:
        beats = self._rows.enter().beats
        beats[worker_id] = WorkerBeat(
            id=worker_id,
            stats=dict(stats),
            registry=registry,
            beat_at=max(at, beats[worker_id].beat_at) if worker_id in beats else at,
            started_at=started_at,
            traffic=list(traffic),
        )
        for silent in [name for name, last in beats.items() if last.beat_at < at - timedelta(days=1)]:
            del beats[silent]

    async def alive(self, since: datetime) -> int:
        return sum(last.beat_at >= since for last in self._rows.enter().beats.values())

    async def beats(self, since: datetime) -> list[WorkerBeat]:
        beats = self._rows.enter().beats
        return [beats[name] for name in sorted(beats) if beats[name].beat_at >= since]


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
