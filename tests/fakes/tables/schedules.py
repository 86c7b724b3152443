"""Fake tables of schedules and their runs, in memory."""

from datetime import UTC, datetime, timedelta

from batchwright.database.tables.schedules import KEPT_RUNS, ScheduleRow, ScheduleRunRow, SchedulesTable
from batchwright.rules.batch_states import visible_status
from tests.fakes.tables.rows import Rows, position


class MemorySchedules(SchedulesTable):
    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    async def insert(self, row: ScheduleRow, limit: int) -> bool:
        rows = self._rows.enter().schedules
        if limit and sum(tenant == row.tenant for tenant, _ in rows) >= limit:
            return False
        rows.setdefault((row.tenant, row.id), row)
        return True

    async def get(self, tenant: str, id: str) -> ScheduleRow | None:
        return self._rows.enter().schedules.get((tenant, id))

    async def page(self, tenant: str, *, limit: int, after: str | None) -> tuple[list[ScheduleRow], bool]:
        mine = [row for row in self._rows.enter().schedules.values() if row.tenant == tenant]
        mine.sort(key=lambda row: (row.created_at, row.id), reverse=True)
        mine = mine[position([row.id for row in mine], after) :]
        return mine[:limit], len(mine) > limit

    async def update(self, row: ScheduleRow) -> ScheduleRow | None:
        before = await self.get(row.tenant, row.id)
        if before is None or before.version != row.version:
            return None
        self._keep_input(before)
        changed = row.model_copy(update={"created_at": before.created_at, "version": row.version + 1})
        self._rows.schedules[row.tenant, row.id] = changed
        return changed

    async def delete(self, tenant: str, id: str) -> bool:
        self._rows.schedule_runs.pop((tenant, id), None)
        row = self._rows.enter().schedules.pop((tenant, id), None)
        if row is not None:
            self._keep_input(row)
        return row is not None

    async def record_run(self, tenant: str, schedule_id: str, run: ScheduleRunRow) -> None:
        if await self.get(tenant, schedule_id) is None:
            return
        others = self._rows.schedule_runs.get((tenant, schedule_id), [])
        runs = [run, *(each for each in others if each.id != run.id)]
        runs.sort(key=lambda each: (each.scheduled_at, each.id), reverse=True)
        self._rows.schedule_runs[tenant, schedule_id] = runs[:KEPT_RUNS]

    async def runs(self, tenant: str, schedule_id: str, limit: int) -> list[ScheduleRunRow]:
        runs = self._rows.enter().schedule_runs.get((tenant, schedule_id), [])
        return [self._seen(tenant, run) for run in runs[:limit]]

    def _keep_input(self, row: ScheduleRow) -> None:
        key, until = (row.tenant, row.template.input_file_id), datetime.now(UTC) + timedelta(days=1)
        file = self._rows.files.get(key)
        if file is not None and file.expires_at is not None and file.expires_at < until:
            self._rows.files[key] = file.model_copy(update={"expires_at": until})

    def _seen(self, tenant: str, run: ScheduleRunRow) -> ScheduleRunRow:
        batch = self._rows.batches.get((tenant, run.batch_id or ""))
        requested = batch is not None and batch.cancel_requested_at is not None
        status = None if batch is None else visible_status(batch.status, cancel_requested=requested)
        return run.model_copy(update={"status": status})
