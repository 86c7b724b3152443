"""Fake database in memory. It passes the same tests as the database on PostgreSQL."""

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from batchwright.contracts.model_registry.price_config import PriceConfig
from batchwright.contracts.temporal_payloads.batch import BatchOrder, ErrorCount, ModelCounts
from batchwright.contracts.temporal_payloads.output_copies import OutputCopy, OutputCopyState
from batchwright.contracts.terms import BatchStatus, Endpoint, Usage, ValidationError
from batchwright.database.database import Database, DatabaseServer
from batchwright.database.errors import UnknownBatch
from batchwright.database.records import BatchOutcome, BatchRow, EndedBatch, SliceProgress
from batchwright.database.tables.batches.batch_list import BatchList
from batchwright.database.tables.batches.batch_records import add_reported, final_counts
from batchwright.database.tables.batches.batch_snapshots import BatchKey, BatchSnapshot, BatchSnapshots
from batchwright.database.tables.batches.batches import BatchesTable
from batchwright.database.tables.batches.dead_letters import StoredDeadLetter
from batchwright.database.tables.batches.progress import (
    BatchSpending,
    ProgressSample,
    ProgressTable,
    SettledLines,
    SliceKey,
)
from batchwright.database.tables.batches.waiting_reasons import WaitingRow
from batchwright.rules.batch_filters import NO_FILTERS, BatchFilters
from batchwright.rules.batch_states import LIVE_STATES, cancel_takes_precedence, visible_status
from batchwright.rules.dispatch.fair_queue import fresh_fairness_key
from batchwright.rules.planning.cost_estimate import OutputHistory
from batchwright.rules.token_costs import amount_of, total_cost
from tests.fakes.tables.batches.batch_deletions import MemoryBatchDeletions
from tests.fakes.tables.batches.custom_ids import MemoryCustomIds
from tests.fakes.tables.batches.dead_letters import MemoryDeadLetters
from tests.fakes.tables.batches.reruns import MemoryReruns
from tests.fakes.tables.batches.waiting_reasons import MemoryWaitingReasons
from tests.fakes.tables.callbacks import MemoryCallbacks
from tests.fakes.tables.calls import MemoryCalls, end_calls
from tests.fakes.tables.files import MemoryFiles
from tests.fakes.tables.models.holds import MemoryHolds
from tests.fakes.tables.models.models import MemoryModelChanges, MemoryModels, MemoryRates
from tests.fakes.tables.operations.audit_log import MemoryAuditLog
from tests.fakes.tables.operations.consistency_checks import MemoryConsistencyChecks
from tests.fakes.tables.operations.fleet import MemoryLiveBatches
from tests.fakes.tables.operations.forecasts import MemoryForecasts
from tests.fakes.tables.operations.operator_batches import MemoryOperatorBatches
from tests.fakes.tables.operations.retention import MemoryRetention
from tests.fakes.tables.operations.workers import MemoryWorkers
from tests.fakes.tables.rows import (
    Rows,
    add_sample,
    not_before,
    per_model,
    position,
    slices,
    usage_per_model,
)
from tests.fakes.tables.schedules import MemorySchedules
from tests.fakes.tables.tenants.quotas import MemoryQuotas
from tests.fakes.tables.tenants.tenants import (
    MemoryApiKeys,
    MemoryBudgetGroups,
    MemorySessions,
    MemoryTenants,
)
from tests.fakes.tables.uploads import MemoryIdempotency, MemoryUploads
from tests.fakes.tables.webhooks import MemoryWebhookDeliveries, MemoryWebhookEndpoints, record_event


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
            self._put(row, cancel_requested_at=not_before(row, at))
        return await self.get(tenant, batch_id)

    async def set_max_cost(self, tenant: str, batch_id: str, max_cost: str | None) -> bool:
        row = self._in(BatchStatus.IN_PROGRESS, tenant, batch_id)
        if row is None or row.cancel_requested_at is not None or row.cap_reached_at is not None:
            return False
        self._put(row, order=row.order.model_copy(update={"max_cost": max_cost}))
        return True

    async def record_output_copy(self, tenant: str, batch_id: str, copy: OutputCopy) -> None:
        row = self._rows.enter().batches.get((tenant, batch_id))
        if row is None or not row.status.is_terminal or row.order.output_location is None:
            return
        state = OutputCopyState.PENDING if row.output_copy is None else row.output_copy.state
        succeeds_late = (state, copy.state) == (OutputCopyState.FAILED, OutputCopyState.WRITTEN)
        if state is OutputCopyState.PENDING or succeeds_late:
            self._put(row, output_copy=copy)

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
        row = self._in(BatchStatus.VALIDATING, tenant, batch_id)
        if row is None:
            return False
        status, time = BatchStatus.IN_PROGRESS, not_before(row, at)
        settled = {"completed": completed, "failed": unserved, "ingestion_errors": errors or []}
        began = {"in_progress_at": time, "ingestion_began_at": began_at, "prices": prices or {}}
        self._put(row, status=status, total=total, models=models, **settled, **began)
        add_sample(self._rows, tenant, batch_id, time)
        return True

    async def add_attempt(self, tenant: str, batch_id: str, prefix: str, size: int) -> None:
        row = self._rows.enter().batches.get((tenant, batch_id))
        if row is not None and row.status in LIVE_STATES:
            self._rows.attempts.setdefault((tenant, batch_id, prefix), size)

    async def remove_attempt(self, tenant: str, batch_id: str, prefix: str) -> None:
        self._rows.enter().attempts.pop((tenant, batch_id, prefix), None)

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
        time = not_before(row, at)
        self._put(row, status=BatchStatus.FINALIZING, finalizing_at=time)
        add_sample(self._rows, tenant, batch_id, time)
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
        changed = self._put(row, files_pending_until=None, **_files_and_counts(row, outcome))
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
        return EndedBatch(self._put(row, files_pending_until=None, **changes), moved=True)

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
        row = self._put(row, results_kept_until=keep_until, files_pending_until=files_until)
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
        return self._put(
            row,
            status=outcome.status,
            **{f"{outcome.status}_at": time},
            cancel_requested_at=row.cancel_requested_at or (time if cancelled else None),
            errors=outcome.errors,
            **_files_and_counts(row, outcome),
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

    def _forget(self, tenant: str, batch_id: str) -> None:
        self._rows.forecasts.pop((tenant, batch_id), None)
        for progress in slices(self._rows, tenant, batch_id):
            del self._rows.progress[tenant, batch_id, progress.model, progress.number]
        for key in [key for key in self._rows.waiting if key[:2] == (tenant, batch_id)]:
            del self._rows.waiting[key]
        for attempt in [key for key in self._rows.attempts if key[:2] == (tenant, batch_id)]:
            del self._rows.attempts[attempt]


class MemoryBatchList(BatchList):
    def __init__(self, rows: Rows) -> None:
        self._rows, self._batches = rows, MemoryBatches(rows)

    async def page(
        self,
        tenant: str,
        *,
        limit: int,
        after: str | None,
        filters: BatchFilters = NO_FILTERS,
        before: str | None = None,
    ) -> tuple[list[BatchRow], bool]:
        rows = [row for row in self._rows.enter().batches.values() if row.order.tenant == tenant]
        rows = [row for row in rows if row.order.policy.rolling is None]
        rows.sort(key=lambda row: (row.order.created_at, row.order.batch_id), reverse=before is None)
        rows = rows[position([row.order.batch_id for row in rows], before or after) :]
        rows = [row for row in rows if _matches(row, filters)]
        found = rows[:limit] if before is None else rows[:limit][::-1]
        shown = [self._batches.with_forecast(self._batches.seen(row, in_list=True)) for row in found]
        return shown, len(rows) > limit

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


class MemoryBatchSnapshots(BatchSnapshots):
    def __init__(self, rows: Rows) -> None:
        self._batches = MemoryBatches(rows)

    async def read(self, keys: Collection[BatchKey], at: datetime) -> dict[BatchKey, BatchSnapshot]:
        found = {key: await self._batches.get_with_reasons(*key, at) for key in keys}
        return {key: BatchSnapshot(*each) for key, each in found.items() if each is not None}


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

    async def totals(self, tenant: str, batch_id: str) -> list[ModelCounts]:
        row = await MemoryBatches(self._rows).get(tenant, batch_id)
        return [] if row is None else row.models

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


class MemoryServer(DatabaseServer):
    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    async def check(self) -> None:
        self._rows.enter()

    async def close(self) -> None:
        return None


class MemoryDatabase(Database):
    """Database whose tables are dictionaries in `rows`, which tests may read and change.

    If a test sets `rows.failing` to an exception, such as `DatabaseUnavailable(...)`, each call raises it.
    """

    rows: Rows
    callbacks: MemoryCallbacks

    def __init__(self) -> None:
        rows = Rows()
        self.rows = rows
        super().__init__(
            server=MemoryServer(rows),
            files=MemoryFiles(rows),
            uploads=MemoryUploads(rows),
            idempotency=MemoryIdempotency(rows),
            batches=MemoryBatches(rows),
            batch_list=MemoryBatchList(rows),
            batch_snapshots=MemoryBatchSnapshots(rows),
            batch_deletions=MemoryBatchDeletions(rows),
            custom_ids=MemoryCustomIds(rows, MemoryBatchList(rows)),
            progress=MemoryProgress(rows),
            reruns=MemoryReruns(rows),
            dead_letters=MemoryDeadLetters(rows),
            waiting=MemoryWaitingReasons(rows),
            forecasts=MemoryForecasts(rows),
            callbacks=MemoryCallbacks(rows),
            calls=MemoryCalls(rows),
            fleet=MemoryLiveBatches(rows),
            operator_batches=MemoryOperatorBatches(rows),
            models=MemoryModels(rows),
            model_changes=MemoryModelChanges(rows),
            rates=MemoryRates(rows),
            holds=MemoryHolds(rows),
            workers=MemoryWorkers(rows),
            schedules=MemorySchedules(rows),
            webhook_endpoints=MemoryWebhookEndpoints(rows),
            webhook_deliveries=MemoryWebhookDeliveries(rows),
            retention=MemoryRetention(rows),
            consistency_checks=MemoryConsistencyChecks(rows),
            audit_log=MemoryAuditLog(rows),
            tenants=MemoryTenants(rows),
            api_keys=MemoryApiKeys(rows),
            sessions=MemorySessions(rows),
            budget_groups=MemoryBudgetGroups(rows),
            quotas=MemoryQuotas(rows),
        )
