"""Activities of a schedule that is due: admit its batch, record the run, wait for the end of the batch."""

import contextlib
import logging
from datetime import UTC, datetime

from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from batchwright.activities.errors import translated
from batchwright.activities.heartbeat import heartbeating
from batchwright.activities.services.schedule_changes import apply_pending
from batchwright.contracts.errors import Failure
from batchwright.contracts.temporal_payloads.batch import BatchOrder
from batchwright.contracts.temporal_payloads.batch_schedules import (
    BatchTemplate,
    RunRecord,
    ScheduleActivities,
    ScheduledBatch,
    ScheduledRun,
)
from batchwright.contracts.terms import BatchStatus, Quota
from batchwright.database.database import Database
from batchwright.database.errors import QuotaExhausted, UnknownBatch
from batchwright.database.tables.schedules import ScheduleRow, ScheduleRunRow
from batchwright.database.tables.tenants.admissions import Admission
from batchwright.rules.backends.request_headers import currently_passed
from batchwright.rules.ids import batch_id_of_run, derived_file_id
from batchwright.rules.stored_objects.object_locations import parse_object, parse_output_location
from batchwright.rules.tenants.api_keys import is_usable
from batchwright.settings import Settings
from batchwright.telemetry.metrics import Metrics
from batchwright.temporal.batch_order import PriorityNotAllowed, build_order
from batchwright.temporal.batch_schedules import BatchSchedules, TimeZoneUnknown
from batchwright.temporal.errors import TemporalUnavailable

_log = logging.getLogger(__name__)


class BatchScheduling(ScheduleActivities):
    """The activities of scheduled batches: check and record each batch of a schedule, and wait for its end.

    Args:
        schedules: client for the schedules in Temporal.
    """

    def __init__(
        self,
        database: Database,
        settings: Settings,
        metrics: Metrics,
        schedules: BatchSchedules,
    ) -> None:
        self._database, self._settings, self._metrics = database, settings, metrics
        self._schedules = schedules

    @activity.defn
    async def admit_scheduled_batch(self, run: ScheduledRun) -> ScheduledBatch:
        """Check whether a schedule that is due now may create its batch.

        Return the order of the batch (the message that starts the workflow of the batch), or why the batch is
        refused. If the database already has a row for the batch, return the order in this row.

        The batch's id is derived from the id of the workflow run that creates the batch. So every attempt
        returns an order with the same batch id.

        If the schedule was deleted in the database but still exists in Temporal, the batch is refused, and
        the schedule is deleted in Temporal, too.

        Raises (ApplicationError, by type):
            DatabaseUnavailable: the database does not respond; retried.
        """
        tenant, schedule_id = run.schedule.tenant, run.schedule.schedule_id
        batch_id = batch_id_of_run(run.run_id)
        async with heartbeating(), translated():
            schedule = await self._database.schedules.get(tenant, schedule_id)
            if schedule is None:
                await self._remove_orphan(schedule_id)
                return ScheduledBatch(code="schedule_deleted", refusal="The schedule was deleted.")
            row = await self._database.batches.get(tenant, batch_id)
            if row is not None:
                return ScheduledBatch(order=row.order)
            return await self._admit(await self._applied(schedule), batch_id)

    @activity.defn
    async def record_scheduled_run(self, record: RunRecord) -> None:
        """Record in the database whether a schedule that was due has created its batch.

        A schedule runs once each time it is due. A run creates one batch, or none.

        - If the run created a batch: insert the batch's row, and add the run to the schedule's list of runs.
        - If it created none: add the run to this list, with the reason why there is no batch.

        A repeated call changes nothing.

        Raises (ApplicationError, by type):
            DatabaseUnavailable: the database does not respond; retried.
        """
        run, batch = record.run, record.batch
        tenant, schedule_id = run.schedule.tenant, run.schedule.schedule_id
        row = ScheduleRunRow(id=run.run_id, scheduled_at=run.scheduled_at)
        async with heartbeating(), translated():
            if batch.order is None:
                row = row.model_copy(update={"code": batch.code, "message": batch.refusal})
                fields = {"schedule_id": schedule_id, "code": batch.code}
                _log.warning("scheduled batch not created", extra=fields)
            else:
                with contextlib.suppress(UnknownBatch):  # it has ended, and its tenant has deleted it
                    await self._database.batches.upsert(batch.order)
                row = row.model_copy(update={"batch_id": batch.order.batch_id})
                fields = {"batch_id": batch.order.batch_id, "schedule_id": schedule_id}
                _log.info("batch created", extra=fields)
            await self._database.schedules.record_run(tenant, schedule_id, row)

    @activity.defn
    async def record_scheduled_cancel(self, order: BatchOrder) -> None:
        """Record that the batch is being cancelled, so that clients see it. An ended batch stays unchanged.

        Raises (ApplicationError, by type):
            DatabaseUnavailable: the database does not respond; retried.
        """
        async with heartbeating(), translated():
            now = datetime.now(UTC).replace(microsecond=0)
            await self._database.batches.request_cancel(order.tenant, order.batch_id, now)

    @activity.defn
    async def end_of_scheduled_batch(self, order: BatchOrder) -> BatchStatus | None:
        """Return the final status of a batch; None if its tenant has deleted it after the end.

        While the batch runs, every attempt fails and Temporal retries it. So the activity waits for the end.

        Raises (ApplicationError, by type):
            BatchLive: the batch has not ended; retried.
            DatabaseUnavailable: the database does not respond; retried.
        """
        async with heartbeating(), translated():
            row = await self._database.batches.get(order.tenant, order.batch_id)
        if row is None or row.status.is_terminal:
            return row and row.status
        raise ApplicationError(
            "The batch has not ended.", type=Failure.BATCH_LIVE, category=ApplicationErrorCategory.BENIGN
        )

    async def _applied(self, schedule: ScheduleRow) -> ScheduleRow:
        """Finish an unfinished change of a schedule that a client has requested. Return the changed schedule.

        A change stays unfinished if a process crashes while it applies the change, or if Temporal is
        unavailable. If no change is unfinished, or the change cannot be finished now, return the schedule as
        it is.
        """
        try:
            return await apply_pending(schedule, self._database.schedules, self._schedules) or schedule
        except (TemporalUnavailable, TimeZoneUnknown) as error:  # the schedule is used as it was
            fields = {"schedule_id": schedule.id, "error": str(error)}
            _log.warning("change of a schedule not applied", extra=fields)
            return schedule

    async def _remove_orphan(self, schedule_id: str) -> None:
        try:
            await self._schedules.delete(schedule_id)
        except TemporalUnavailable as error:  # its next run tries again
            fields = {"schedule_id": schedule_id, "error": str(error)}
            _log.warning("deleted schedule not removed from Temporal", extra=fields)

    async def _admit(self, schedule: ScheduleRow, batch_id: str) -> ScheduledBatch:
        """Check whether a batch of the schedule may be created now.

        - If it may: count the batch towards the tenant's quota of batches that have not ended. Return its
          order (the message that starts its workflow).
        - If it may not: return why it is refused.
        """
        tenant, template, now = schedule.tenant, schedule.template, datetime.now(UTC).replace(microsecond=0)
        if refusal := await self._caller_refusal(tenant, template, now):
            return refusal
        if refusal := self._location_refusal(tenant, template):
            return refusal
        if template.input_location is not None:  # each batch has a copy of its own
            template = template.model_copy(update={"input_file_id": derived_file_id(batch_id, "input")})
        elif await self._database.files.get(tenant, template.input_file_id) is None:
            return _refused("file_not_found", f"The input file '{template.input_file_id}' was deleted.")
        own = await self._database.quotas.get(tenant)
        headers = currently_passed(template.caller.headers, self._settings.passed_headers)
        caller = template.caller.model_copy(update={"headers": headers})
        try:
            order = build_order(
                *(template.model_copy(update={"caller": caller}), batch_id, tenant, now, self._settings),
                fairness_key=await self._database.batch_list.fairness_key(tenant, now),
                fairness_weight=own.weight,
                max_priority=own.highest_priority,
            )
        except PriorityNotAllowed as error:
            return _refused("invalid_value", str(error))
        limit = own.limits(self._settings.quotas).live_batches
        admission = Admission(tenant, batch_id, Quota.LIVE_BATCHES, 1, limit)
        try:
            if limit:
                await self._database.admissions.admit(admission)
        except QuotaExhausted:
            label = self._metrics.tenants(tenant)
            self._metrics.quota_refusals.labels(label, Quota.LIVE_BATCHES.value).inc()
            return _refused(
                "rate_limit_exceeded", f"Too many batches at once: at most {limit} may be unfinished."
            )
        return ScheduledBatch(order=order)

    def _location_refusal(self, tenant: str, template: BatchTemplate) -> ScheduledBatch | None:
        """Check that the tenant still has access to the buckets that the schedule uses.

        Return a refusal if the tenant is no longer allowed to read from the input location, or to write to
        the output location. In all other cases, return None, for example if the schedule uses no bucket.
        """
        source, target = template.input_location, template.output_location
        if source is not None and not self._settings.may_read(tenant, parse_object(source)):
            refusal = f"Tenant '{tenant}' may no longer read from '{source}'."
        elif target is not None and not self._settings.may_write(tenant, parse_output_location(target)):
            refusal = f"Tenant '{tenant}' may no longer write to '{target}'."
        else:
            return None
        return _refused("location_not_allowed", refusal)

    async def _caller_refusal(
        self, tenant: str, template: BatchTemplate, now: datetime
    ) -> ScheduledBatch | None:
        """Return a refusal if the tenant is disabled, or if the schedule's API key is revoked or expired.

        Return None in all other cases, also if the schedule has no key. The schedule's key is the API key of
        the request that created the schedule or, if the schedule was changed, of the last change.
        """
        row = await self._database.tenants.get(tenant)
        if row is not None and row.disabled_at is not None:
            return _refused("tenant_disabled", f"The tenant '{tenant}' is disabled.")
        key_id = template.caller.key_id
        keys = await self._database.api_keys.all(tenant) if key_id else []
        for key in keys:
            usable = is_usable(now, expires_at=key.expires_at, revoked_at=key.revoked_at, disabled_at=None)
            if key.id == key_id and usable:
                return None
        if not key_id:
            return None
        return _refused(
            "key_revoked",
            f"The API key {key_id} of the schedule was revoked or has expired. Change the schedule with "
            "another key, which it then has.",
        )


def _refused(code: str, message: str) -> ScheduledBatch:
    return ScheduledBatch(code=code, refusal=message)
