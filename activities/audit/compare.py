"""Compares rows, runs, files and counts, and repairs what is safe to.

A row is written only where its run has ended or is not there: while there is one, that alone writes it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from activities.audit.differences import Difference, Kind, Report
from activities.audit.restore import restored
from activities.audit.runs import Run, Runs
from batchwright.contracts.batch import BatchOrder, BatchResult
from batchwright.contracts.openai import BatchStatus, ValidationError
from batchwright.database.base import DatabaseLike
from batchwright.database.rows import BatchRow, FileRow, Outcome
from batchwright.settings import Settings
from batchwright.storage.base import ObjectMissing, Storage

# What begins or ends right now is in two places after another.
SETTLING = timedelta(minutes=2)
_PAGE = 100
_STATS_AT_ONCE = 16
_LISTED = 10_000  # before a wrong bucket, every file is missing


@dataclass(frozen=True)
class Sources:
    database: DatabaseLike
    storage: Storage
    runs: Runs
    settings: Settings
    now: datetime
    repair: bool = False


class Audit:
    """One look at everything. Raises DatabaseUnavailable, StorageUnavailable, RPCError."""

    def __init__(self, sources: Sources) -> None:
        self._to = sources
        self._found: list[Difference] = []
        self._rows = self._runs = self._files = self._unlisted = 0

    async def run(self) -> Report:
        await self._live_rows()
        await self._all_runs()
        await self._counts()
        await self._all_files()
        return self.so_far()

    def so_far(self) -> Report:
        """What was looked at and found until now."""
        return Report(
            differences=self._found,
            rows=self._rows,
            runs=self._runs,
            files=self._files,
            unlisted=self._unlisted,
        )

    async def _live_rows(self) -> None:
        for live in await self._to.database.fleet.live():
            self._rows += 1
            run = await self._to.runs.find(live.id)
            if run is not None and (not run.ended or self._is_fresh(run.ended_at)):
                continue
            row = await self._to.database.batches.get(live.tenant, live.id)
            if row is None or row.status.is_terminal or self._is_fresh(row.order.created_at):
                continue
            await (self._start_again(row) if run is None else self._end(row, run))

    async def _start_again(self, row: BatchRow) -> None:
        what = f"the row is '{row.status}', and Temporal knows no run of it"
        await self._note(Kind.RUN_MISSING, row.order, what, "a run is started", self._starting(row.order))

    def _starting(self, order: BatchOrder) -> Callable[[], Awaitable[None]]:
        return lambda: self._to.runs.start(order)

    async def _end(self, row: BatchRow, run: Run) -> None:
        """As the run ended; one that was ended from outside leaves a failed batch, which can be resumed."""
        what = f"the row is '{row.status}', and its run has ended ({run.ended})"
        order = row.order
        result = run.result
        if result is None:
            await self._note(Kind.RUN_ENDED, order, what, "the batch fails", self._failing(order, run))
            return
        outcome = await self._restored(order, result, run)
        if outcome is None:
            lost = f"{what} as '{result.status}', but its files are not in storage"
            await self._note(Kind.RUN_ENDED, order, lost)
            return

        async def finish() -> None:
            at = run.ended_at or self._to.now
            await self._to.database.batches.finish(order.tenant, order.batch_id, outcome, at)

        await self._note(Kind.RUN_ENDED, order, what, f"the row becomes '{result.status}'", finish)

    async def _restored(self, order: BatchOrder, result: BatchResult, run: Run) -> Outcome | None:
        at = run.ended_at or self._to.now
        return await restored(order, result, at, self._to.storage, self._to.settings)

    def _failing(self, order: BatchOrder, run: Run) -> Callable[[], Awaitable[None]]:
        message = f"The batch's run was ended from outside ({run.ended})."
        errors = [ValidationError(code="system_error", message=message)]

        async def fail() -> None:
            at = run.ended_at or self._to.now
            keep = self._to.now + timedelta(days=self._to.settings.partial_file_retention_days)
            table, status = self._to.database.batches, BatchStatus.FAILED
            await table.end(order.tenant, order.batch_id, status, errors, at, keep)

        return fail

    async def _all_runs(self) -> None:
        async for run in self._to.runs.all():
            self._runs += 1
            if not run.tenant or self._is_fresh(run.started_at):
                continue
            row = await self._to.database.batches.get(run.tenant, run.id)
            if row is None:
                await self._make_row(run)
            elif row.status.is_terminal and not run.ended and not self._is_fresh(_ended_at(row)):
                order = row.order
                await self._note(Kind.RUN_OPEN, order, f"the row is '{row.status}', its run goes on")

    async def _make_row(self, run: Run) -> None:
        order = await self._to.runs.order(run.id)
        what = f"there is a run ({run.ended or 'open'}) and no row"

        async def make() -> None:
            row = await self._to.database.batches.upsert(order)
            if run.ended and (whole := await self._to.runs.find(run.id)) is not None:
                await self._end(row, whole)

        await self._note(Kind.ROW_MISSING, order, what, "the row is made of what the run knows", make)

    async def _counts(self) -> None:
        for row in await self._to.database.retention.miscounted():
            counts = f"{row.completed} completed and {row.failed} failed are not {row.total} lines"
            await self._note(Kind.COUNTS, row.order, counts)

    async def _all_files(self) -> None:
        """Every file that is known and has settled; retention deletes the row of one that lost its object."""
        table, before = self._to.database.retention, self._to.now - SETTLING
        tenant = ""
        while names := await table.tenants(tenant, _PAGE):
            for tenant in names:
                after = ""
                while rows := await table.settled_files(tenant, after, before, self._to.now, _PAGE):
                    for first in range(0, len(rows), _STATS_AT_ONCE):
                        await asyncio.gather(*map(self._look, rows[first : first + _STATS_AT_ONCE]))
                    after = rows[-1].id

    async def _look(self, file: FileRow) -> None:
        self._files += 1
        try:
            await self._to.storage.stat(file.storage_key)
        except ObjectMissing:
            what = f"its object '{file.storage_key}' is not in storage"
            if len(self._found) >= _LISTED:
                self._unlisted += 1
                return
            found = Difference(kind=Kind.FILE_MISSING, tenant=file.tenant, id=file.id, what=what)
            self._found.append(found)

    async def _note(
        self,
        kind: Kind,
        order: BatchOrder,
        what: str,
        repair: str = "",
        mend: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        found = Difference(kind=kind, tenant=order.tenant, id=order.batch_id, what=what, repair=repair)
        self._found.append(found)
        if mend is not None and self._to.repair:
            await mend()
            found.repaired = True

    def _is_fresh(self, at: datetime | None) -> bool:
        return at is not None and at > self._to.now - SETTLING


def _ended_at(row: BatchRow) -> datetime | None:
    return row.completed_at or row.failed_at or row.expired_at or row.cancelled_at
