"""Creates, reads, changes, triggers and deletes schedules, in the database and in Temporal."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from batchwright.activities.services.schedule_changes import apply_pending
from batchwright.api.dependencies import ApiDependencies
from batchwright.api.errors import conflict, invalid_value, schedule_not_found, schedule_quota_exceeded
from batchwright.api.schemas.batch_create import BatchCreate
from batchwright.api.schemas.schedules import (
    DEFAULT_TIME_ZONE,
    ScheduleFields,
    schedule_object,
    unknown_time_zone,
)
from batchwright.api.services.batches.creation import check_input_location, check_output_location
from batchwright.contracts.api_objects.schedules import ScheduleObject
from batchwright.contracts.temporal_payloads.batch import Caller
from batchwright.contracts.temporal_payloads.batch_schedules import BatchTemplate, OverlapPolicy
from batchwright.database.errors import DatabaseUnavailable
from batchwright.database.tables.schedules import ScheduleRow
from batchwright.rules.ids import is_file_id, is_schedule_id
from batchwright.temporal.batch_schedules import ScheduleMissing, ScheduleStatus, TimeZoneUnknown

SHOWN_RUNS = 10
_PARALLEL_CALLS = 10
# Temporal has no schedule with this id if its creation was interrupted. `resume` creates it.
_MISSING = ScheduleStatus(paused=True, next_times=[], skipped=0, is_running=False)


class Schedules:
    """The service that creates, changes and runs the schedules of all tenants. A schedule creates batches at
    fixed times.

    Each schedule is stored in two places:

    - A database row contains the times at which batches are created, and the template of these batches.
    - A Temporal schedule with the same id starts the runs, each of which creates one batch. It also stores
      whether the schedule is paused.

    If the schedule does not exist, `row`, `change` and `delete` raise ApiError (404). If Temporal does not
    respond, all methods that use Temporal raise TemporalUnavailable.
    """

    def __init__(self, deps: ApiDependencies) -> None:
        self._deps, self._settings = deps, deps.settings
        self._table, self._temporal = deps.database.schedules, deps.temporal.schedules

    async def create(self, id: str, fields: ScheduleFields, tenant: str, caller: Caller) -> ScheduleObject:
        """Create a schedule, and return the schedule. Its batches run with the API key of `caller`.

        Args:
            id: id of the new schedule.

        Raises:
            ApiError: the time zone or the input file does not exist (400), the tenant is not allowed to use
                an input or output location (403), or the tenant has too many schedules (429).
        """
        if fields.cron is None or fields.batch is None:
            raise TypeError("a new schedule needs a cron expression and a batch")
        row = ScheduleRow(
            tenant=tenant,
            id=id,
            description=fields.description or "",
            cron=fields.cron,
            time_zone=fields.time_zone or DEFAULT_TIME_ZONE,
            overlap=fields.overlap or OverlapPolicy.SKIP,
            template=await self._template(fields.batch, tenant, caller),
            created_at=self._deps.clock(),
        )
        if not await self._table.insert(row, self._settings.max_schedules):
            raise schedule_quota_exceeded(self._settings.max_schedules)
        try:
            await self._temporal.create(row)
        except BaseException as error:  # also if the client disconnects
            with suppress(DatabaseUnavailable):
                await asyncio.shield(self._table.delete(tenant, row.id))
            if isinstance(error, TimeZoneUnknown):
                raise unknown_time_zone(row.time_zone) from None
            raise
        return await self.shown(row)

    async def row(self, tenant: str, id: str) -> ScheduleRow:
        """Return the database row of a schedule.

        If an earlier change was interrupted before it was applied in Temporal, first apply that change.
        """
        row = await self._table.get(tenant, id) if is_schedule_id(id) else None
        row = None if row is None else await self._applied(row)
        if row is None:
            raise schedule_not_found(id)
        return row

    async def _applied(self, row: ScheduleRow) -> ScheduleRow | None:
        try:
            return await apply_pending(row, self._table, self._temporal)
        except TimeZoneUnknown:  # then the change is dropped
            return await self._table.get(row.tenant, row.id)

    async def shown(self, row: ScheduleRow) -> ScheduleObject:
        """Return the schedule object for a database row. It contains the times of the next runs and the
        latest runs. Each run creates one batch.
        """
        runs = await self._table.runs(row.tenant, row.id, SHOWN_RUNS)
        return schedule_object(row, await self._status(row.id), runs)

    async def all_shown(self, rows: Sequence[ScheduleRow]) -> list[ScheduleObject]:
        places = asyncio.Semaphore(_PARALLEL_CALLS)

        async def one(row: ScheduleRow) -> ScheduleObject:
            async with places:
                return await self.shown(await self._applied(row) or row)

        return await asyncio.gather(*(one(row) for row in rows))

    async def change(self, row: ScheduleRow, fields: ScheduleFields, caller: Caller) -> ScheduleObject:
        """Change fields of a schedule, and return the schedule. Its later batches run with the API key of
        `caller`.

        Raises:
            ApiError: the time zone or the input file does not exist (400), or the tenant is not allowed to
                use an input or output location (403).
        """
        new = await self._template(fields.batch, row.tenant, caller) if fields.batch is not None else None
        given = {
            name: value for name, value in fields._replace(batch=None)._asdict().items() if value is not None
        }
        while True:
            template = new or row.template.model_copy(update={"caller": caller})
            changed = row.model_copy(update={**given, "template": template})
            pending = await self._table.update(row.model_copy(update={"pending": changed}))
            if pending is not None:
                break
            row = await self.row(row.tenant, row.id)  # another request has changed the schedule meanwhile
        try:
            stored = await apply_pending(pending, self._table, self._temporal)
        except TimeZoneUnknown:
            raise unknown_time_zone(changed.time_zone) from None
        if stored is None:
            raise schedule_not_found(row.id)
        return await self.shown(stored)

    async def pause(self, row: ScheduleRow) -> ScheduleObject:
        with suppress(ScheduleMissing):  # then nothing starts runs
            await self._temporal.pause(row.id)
        return await self.shown(row)

    async def resume(self, row: ScheduleRow) -> ScheduleObject:
        try:
            await self._temporal.resume(row.id)
        except ScheduleMissing:
            await self._temporal.create(row)
        return await self.shown(row)

    async def trigger(self, row: ScheduleRow) -> ScheduleObject:
        """Start a run of the schedule now, even if the schedule is paused. Return the schedule.

        A run creates one batch.

        Raises:
            ApiError: the schedule is missing in Temporal, or the overlap policy is `skip` and an earlier
                batch of the schedule has not ended (409).
        """
        if row.overlap is OverlapPolicy.SKIP and (await self._status(row.id)).is_running:
            raise conflict(
                f"Schedule '{row.id}' has a batch that has not ended, and its overlap policy is 'skip'. Wait "
                "for the batch, cancel it, or change 'overlap'."
            )
        try:
            await self._temporal.trigger(row.id)
        except ScheduleMissing:
            raise conflict(f"Schedule '{row.id}' is not active. Resume it, then trigger it.") from None
        return await self.shown(row)

    async def delete(self, row: ScheduleRow) -> None:
        """Delete a schedule. Batches that it has created continue to run."""
        await self._temporal.delete(row.id)
        if not await self._table.delete(row.tenant, row.id):
            raise schedule_not_found(row.id)

    async def _status(self, id: str) -> ScheduleStatus:
        try:
            return await self._temporal.status(id)
        except ScheduleMissing:
            return _MISSING

    async def _template(self, creation: BatchCreate, tenant: str, caller: Caller) -> BatchTemplate:
        template = creation.by(caller).template
        if template.input_location is not None:
            check_input_location(self._settings, template.input_location, tenant, param_prefix="batch.")
        else:
            await self._check_input_file(template.input_file_id, tenant)
        if template.output_location is not None:
            check_output_location(self._settings, template.output_location, tenant, param_prefix="batch.")
        return template

    async def _check_input_file(self, id: str, tenant: str) -> None:
        file = await self._deps.database.files.get(tenant, id) if is_file_id(id) else None
        if file is None or file.purpose != "batch":
            what = "no such file exists" if file is None else f"its purpose is '{file.purpose}', not 'batch'"
            message = f"Invalid value for 'batch.input_file_id': '{id}': {what}."
            raise invalid_value("batch.input_file_id", message)
