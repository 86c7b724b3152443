"""Compare the database's rows with workflow runs, files and counts, and make the repairs that are safe.

- If a live batch (a batch that has not ended) has no workflow run, a run is started.
- If the row of a batch is missing, and retention cannot have deleted it, the row is inserted again.
- If the run has ended, but the row says that the batch is live or that its files are pending, the row gets
  the outcome of the run.
- If the run is open, the run itself updates the row. So an existing row is repaired in one case only: the run
  already sends lines, but the status in the row is still `validating`. The row gets the status `in_progress`
  and the batch's models. Workers read the models from the row to know which queues to poll.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Literal

from batchwright.activities.batch_end.output_files import file_lifetime, output_file_row
from batchwright.activities.consistency.report import ConsistencyReport, Difference, DifferenceKind
from batchwright.activities.consistency.workflow_runs import BatchRun, BatchRunSource
from batchwright.contracts.temporal_payloads.batch import BatchOrder, BatchResult, ModelCounts
from batchwright.contracts.temporal_payloads.ingestion import ModelShare
from batchwright.contracts.terms import BatchStatus, ValidationError
from batchwright.database.database import Database
from batchwright.database.records import BatchOutcome, BatchRow, FileRow
from batchwright.rules.ids import derived_file_id
from batchwright.rules.stored_objects import object_keys
from batchwright.rules.stored_objects.retention import ROLLING_ROW_LIFETIME
from batchwright.settings import Settings
from batchwright.storage.base import ObjectMissing, Storage

# Row and run may differ for this time, because they change one after the other when a batch starts or ends.
SETTLING_TIME = timedelta(minutes=2)
_PAGE = 100
_STATS_AT_ONCE = 16
_MAX_LISTED = 10_000  # limit for the list: with a wrong bucket, every file is missing


@dataclass(frozen=True)
class ComparedSources:
    database: Database
    storage: Storage
    runs: BatchRunSource
    settings: Settings
    now: datetime
    repair: bool


class ConsistencyCheck:
    """One consistency check, with the differences that it has found so far.

    The check finds four kinds of problems:

    - The workflow run of a live batch (a batch that has not ended) has ended or is missing.
    - A workflow run does not match the database row of its batch.
    - The completed and failed lines of an ended batch do not add up to its total.
    - A file has no stored object.

    The methods raise DatabaseUnavailable, StorageUnavailable, or RPCError if Temporal is unavailable.
    """

    def __init__(self, sources: ComparedSources) -> None:
        self._sources = sources
        self._found: list[Difference] = []
        self._rows = self._runs = self._files = self._unlisted = 0

    async def run(self) -> ConsistencyReport:
        await self._compare_live_rows()
        await self._compare_runs()
        await self._compare_counts()
        await self._compare_files()
        return self.report()

    def report(self) -> ConsistencyReport:
        """Return the differences found so far, and the numbers of compared rows, runs and files."""
        return ConsistencyReport(
            differences=self._found,
            rows=self._rows,
            runs=self._runs,
            files=self._files,
            unlisted=self._unlisted,
        )

    async def _compare_live_rows(self) -> None:
        for live in await self._sources.database.fleet.live():
            self._rows += 1
            run = await self._sources.runs.find(live.id)
            if run is not None and (not run.ended or self._is_fresh(run.ended_at)):
                continue
            row = await self._sources.database.batches.get(live.tenant, live.id)
            if row is None or row.status.is_terminal or self._is_fresh(row.order.created_at):
                continue
            await (self._report_missing_run(row) if run is None else self._report_ended_run(row, run))

    async def _report_missing_run(self, row: BatchRow) -> None:
        what = f"the row is '{row.status}', and Temporal has no run of it"
        start = partial(self._sources.runs.start, row.order)
        await self._add(DifferenceKind.RUN_MISSING, row.order, what, "a run is started", start)

    async def _report_ended_run(self, row: BatchRow, run: BatchRun) -> None:
        """Report that a workflow run has ended, although its batch's row says that the batch is live.

        If repairs are on, change the row:

        - If the run has a result, store the result in the row. If one of the result's output files is missing
          in storage, change nothing.
        - If the run has no result, for example because an operator ended the run, set the status `failed`.
          The batch can then be resumed.
        """
        what = f"the row is '{row.status}', and its run has ended ({run.ended})"
        order = row.order
        result = run.result
        if result is None:
            await self._add(
                DifferenceKind.RUN_ENDED, order, what, "the batch fails", partial(self._fail, order, run)
            )
            return
        outcome = await self._restored(order, result, run)
        if outcome is None:
            lost = f"{what} as '{result.status}', but its files are not in storage"
            await self._add(DifferenceKind.RUN_ENDED, order, lost)
            return

        async def finish() -> None:
            at = run.ended_at or self._sources.now
            await self._sources.database.batch_ends.finish(order.tenant, order.batch_id, outcome, at)

        await self._add(DifferenceKind.RUN_ENDED, order, what, f"the row becomes '{result.status}'", finish)

    async def _restored(self, order: BatchOrder, result: BatchResult, run: BatchRun) -> BatchOutcome | None:
        at = run.ended_at or self._sources.now
        return await _restored_outcome(order, result, at, self._sources.storage, self._sources.settings)

    async def _fail(self, order: BatchOrder, run: BatchRun) -> None:
        errors = [ValidationError(code="system_error", message=f"{_how_it_ended(run)}.")]
        at, ends = run.ended_at or self._sources.now, self._sources.database.batch_ends
        await ends.end_without_files(
            order.tenant, order.batch_id, BatchStatus.FAILED, errors, at, self._keep_until()
        )

    def _keep_until(self) -> datetime:
        return self._sources.now + timedelta(days=self._sources.settings.partial_file_retention_days)

    async def _compare_runs(self) -> None:
        async for run in self._sources.runs.all():
            self._runs += 1
            if not run.tenant or self._is_fresh(run.started_at):
                continue
            row = await self._sources.database.batches.get(run.tenant, run.id)
            if row is None:
                if not await self._sources.database.batch_deletions.is_deleted(run.tenant, run.id):
                    await self._report_missing_row(run)
            elif row.status is BatchStatus.VALIDATING and _sends_lines(run):
                what = f"the row is '{row.status}', its run is '{run.status}'"
                repair = "the row becomes 'in_progress'"
                start = partial(self._restore_start, row.order)
                await self._add(DifferenceKind.ROW_OUTDATED, row.order, what, repair, start)
            elif row.files_pending:
                if run.ended and not self._is_fresh(run.ended_at):
                    await self._report_pending_files(row, run)
            elif row.status.is_terminal and not run.ended:
                ended_at = row.completed_at or row.failed_at or row.expired_at or row.cancelled_at
                if not self._is_fresh(ended_at):
                    what = f"the row is '{row.status}', its run is still open"
                    await self._add(DifferenceKind.RUN_OPEN, row.order, what)

    async def _report_pending_files(self, row: BatchRow, run: BatchRun) -> None:
        """Report that a workflow run has ended, although its batch's row says that the files are pending.

        If repairs are on, change the row. If the files exist in storage, add them to the row. If they do not
        exist, record that no files will be written.
        """
        order, ends = row.order, self._sources.database.batch_ends
        with_result = await self._sources.runs.find(run.id)
        result = with_result.result if with_result is not None else None
        outcome = await self._restored(order, result, run) if result is not None else None
        what = f"the row is '{row.status}' with files pending, and its run has ended ({run.ended})"

        async def settle() -> None:
            if outcome is not None and (outcome.output or outcome.error):
                await ends.add_files(order.tenant, order.batch_id, outcome)
                return
            if run.ended == "completed":
                message = "The batch's run has ended, and its files are not in storage."
            else:
                message = f"{_how_it_ended(run)} before its files were written."
            errors = [*row.errors, ValidationError(code="system_error", message=message)]
            keep_until = self._keep_until()
            await ends.abandon_files(order.tenant, order.batch_id, errors, keep_until=keep_until)

        await self._add(DifferenceKind.RUN_ENDED, order, what, "the row's pending files are settled", settle)

    async def _report_missing_row(self, run: BatchRun) -> None:
        """Report a workflow run without a database row, unless retention may have deleted the row or the run.

        If repairs are on, insert the row. The row of an ended run also gets the end of the run. If the end is
        unknown, or the run's output files are missing, nothing is inserted: no run would end the new row.
        """
        order = await self._sources.runs.order(run.id)
        if order is None:
            return
        if run.ended_at is not None and run.ended_at <= self._sources.now - self._row_lifetime(order):
            return
        what = f"there is a run ({run.ended or 'open'}) and no row"

        async def restore() -> bool:
            ended = await self._sources.runs.find(run.id) if run.ended else None
            if run.ended and (ended is None or not await self._can_end(order, ended)):
                return False
            row = await self._sources.database.batches.upsert(order)
            if ended is not None:
                await self._report_ended_run(row, ended)
            elif _sends_lines(run):
                await self._restore_start(order)
            return True

        await self._add(DifferenceKind.ROW_MISSING, order, what, "the row is restored from its run", restore)

    async def _can_end(self, order: BatchOrder, run: BatchRun) -> bool:
        """Return False if the run's result names output files that are not in storage."""
        return run.result is None or await self._restored(order, run.result, run) is not None

    def _row_lifetime(self, order: BatchOrder) -> timedelta:
        """Return how long after the end of a batch retention keeps its row at least.

        Temporal may keep the batch's run for longer.
        """
        lifetime = timedelta(days=self._sources.settings.metadata_retention_days)
        return lifetime if order.policy.rolling is None else min(lifetime, ROLLING_ROW_LIFETIME)

    async def _restore_start(self, order: BatchOrder) -> bool:
        """Change the status in the batch's row from `validating` to `in_progress`, and return True.

        Also store the line counts that ingestion (the activity that reads the input) has returned. If the
        history of the run does not have these counts, or if ingestion has failed, change nothing and return
        False.
        """
        ingested = await self._sources.runs.ingested(order.batch_id)
        if ingested is None or ingested.failed:
            return False
        failed = sum(share.resumed_failed for share in ingested.models)
        await self._sources.database.batches.start(
            order.tenant,
            order.batch_id,
            total=ingested.total,
            models=[_counts_of(share) for share in ingested.models],
            at=self._sources.now,
            unserved=ingested.unserved + failed,
            completed=ingested.resumed - failed,
            prices={share.model: share.prices for share in ingested.models if share.prices is not None},
        )
        return True

    async def _compare_counts(self) -> None:
        for row in await self._sources.database.retention.miscounted():
            counts = f"{row.completed} completed and {row.failed} failed are not {row.total} lines"
            await self._add(DifferenceKind.COUNTS, row.order, counts)

    async def _compare_files(self) -> None:
        """Report each file that has a row in the database, but no object in storage.

        Retention (the regular deletion of old data) deletes these rows later.
        """
        table, before = self._sources.database.retention, self._sources.now - SETTLING_TIME
        tenant = ""
        while names := await table.tenants(tenant, _PAGE):
            for tenant in names:
                after = ""
                while rows := await table.settled_files(tenant, after, before, self._sources.now, _PAGE):
                    for first in range(0, len(rows), _STATS_AT_ONCE):
                        await asyncio.gather(*map(self._check_file, rows[first : first + _STATS_AT_ONCE]))
                    after = rows[-1].id

    async def _check_file(self, file: FileRow) -> None:
        self._files += 1
        try:
            await self._sources.storage.stat(file.storage_key)
        except ObjectMissing:
            what = f"its object '{file.storage_key}' is not in storage"
            if len(self._found) >= _MAX_LISTED:
                self._unlisted += 1
                return
            found = Difference(kind=DifferenceKind.FILE_MISSING, tenant=file.tenant, id=file.id, what=what)
            self._found.append(found)

    async def _add(
        self,
        kind: DifferenceKind,
        order: BatchOrder,
        what: str,
        repair: str = "",
        apply: Callable[[], Awaitable[bool | None]] | None = None,
    ) -> None:
        """Add a difference. If repairs are on, repair it.

        Args:
            repair: describes the repair; empty if there is none.
            apply: function that makes the repair, and returns False if the repair was impossible; None if
                there is no repair.
        """
        found = Difference(kind=kind, tenant=order.tenant, id=order.batch_id, what=what, repair=repair)
        self._found.append(found)
        if apply is not None and self._sources.repair:
            found.repaired = await apply() is not False

    def _is_fresh(self, at: datetime | None) -> bool:
        return at is not None and at > self._sources.now - SETTLING_TIME


def _how_it_ended(run: BatchRun) -> str:
    """Return for the tenant how a workflow run without a result has ended, as a sentence without a period."""
    if run.ended in ("terminated", "canceled"):
        return f"The batch's run was ended by an operator ({run.ended})"
    return f"The batch's run ended unexpectedly ({run.ended})"


def _sends_lines(run: BatchRun) -> bool:
    return not run.ended and run.status == BatchStatus.IN_PROGRESS


def _counts_of(share: ModelShare) -> ModelCounts:
    resumed = share.resumed_completed + share.resumed_failed
    return ModelCounts(
        model=share.model,
        lines=share.lines + share.duplicates + resumed,
        completed=share.resumed_completed,
        failed=share.resumed_failed,
        duplicates=share.duplicates,
    )


async def _restored_outcome(
    order: BatchOrder, result: BatchResult, at: datetime, storage: Storage, settings: Settings
) -> BatchOutcome | None:
    """Build the outcome of a batch (its final counts and files) from the result of its workflow run.

    The consistency check writes this outcome to the batch's row. Return None if a file is missing in storage:
    the output file of a batch with completed lines, or the error file of a batch with failed lines.

    Args:
        at: when the run ended; used as the creation time of the files.
    """
    kept = file_lifetime(order, result.status, settings)
    output = await _stored_file(order, "output", storage, at, kept) if result.completed else None
    error = await _stored_file(order, "error", storage, at, kept) if result.failed else None
    if (result.completed and output is None) or (result.failed and error is None):
        return None
    return BatchOutcome(
        status=result.status,
        completed=result.completed,
        failed=result.failed,
        usage=result.usage,
        output=output,
        error=error,
    )


async def _stored_file(
    order: BatchOrder, kind: Literal["output", "error"], storage: Storage, at: datetime, kept: timedelta
) -> FileRow | None:
    """Build the database row of the batch's output or error file from the stored object.

    Return None if storage has no such object.

    Args:
        at: creation time of the file.
        kept: how long the file is kept.
    """
    id = derived_file_id(order.batch_id, kind)
    async for info in storage.list(object_keys.output_key(order.tenant, id, "")):
        return output_file_row(order, kind, info, at, kept)
    return None
