"""The activity that creates the batch of a schedule when it is due, or records why there is none."""

import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import NamedTuple

from temporalio import activity

from batchwright.activities.errors import translated
from batchwright.contracts.batch import BatchOrder
from batchwright.contracts.batch_schedules import (
    BatchTemplate,
    ScheduleActivities,
    ScheduledBatch,
    ScheduledRun,
)
from batchwright.contracts.openai import Quota
from batchwright.database.database import Database
from batchwright.database.tables.schedules import ScheduleRow, ScheduleRunRow
from batchwright.rules.api_keys import is_usable
from batchwright.rules.backends.request_headers import currently_passed
from batchwright.rules.ids import batch_id_of_run
from batchwright.settings import Settings
from batchwright.telemetry.metrics import Metrics
from batchwright.temporal.batch_order import PriorityNotAllowed, build_order
from batchwright.temporal.errors import TemporalUnavailable

_log = logging.getLogger(__name__)


class _Refusal(NamedTuple):
    """Why a batch is not created: a stable code, and a message for the tenant."""

    code: str
    message: str


class BatchScheduling(ScheduleActivities):
    """Creates batches of schedules.

    Args:
        remove: deletes a schedule in Temporal by its id.
    """

    def __init__(
        self,
        database: Database,
        settings: Settings,
        metrics: Metrics,
        remove: Callable[[str], Awaitable[None]],
    ) -> None:
        self._database, self._settings, self._metrics = database, settings, metrics
        self._remove = remove

    @activity.defn
    async def create_scheduled_batch(self, run: ScheduledRun) -> ScheduledBatch:
        """Insert the row of the batch that is due now, and return its order. The batch is not started.

        If the batch may not be created, record why, and return the reason. The batch's id is derived from the
        run, so that another attempt finds its row. If the schedule was deleted in the database, but not in
        Temporal, it is deleted there.

        Raises (ApplicationError, by type):
            DatabaseUnavailable: the database does not respond; retried.
        """
        tenant, schedule_id = run.schedule.tenant, run.schedule.schedule_id
        batch_id = batch_id_of_run(run.run_id)
        async with translated():
            schedule = await self._database.schedules.get(tenant, schedule_id)
            if schedule is None:
                await self._remove_orphan(schedule_id)
                return ScheduledBatch(refusal="The schedule was deleted.")
            row = await self._database.batches.get(tenant, batch_id)
            made = row.order if row is not None else await self._admit(schedule, batch_id)
            seen = ScheduleRunRow(id=run.run_id, scheduled_at=run.scheduled_at)
            if isinstance(made, _Refusal):
                refused = seen.model_copy(update=made._asdict())
                await self._database.schedules.record_run(tenant, schedule_id, refused)
                _log.warning(
                    "scheduled batch not created", extra={"schedule_id": schedule_id, "code": made.code}
                )
                return ScheduledBatch(refusal=made.message)
            await self._database.batches.upsert(made)
            created = seen.model_copy(update={"batch_id": batch_id})
            await self._database.schedules.record_run(tenant, schedule_id, created)
        _log.info("batch created", extra={"batch_id": batch_id, "schedule_id": schedule_id})
        return ScheduledBatch(order=made)

    async def _remove_orphan(self, schedule_id: str) -> None:
        try:
            await self._remove(schedule_id)
        except TemporalUnavailable as error:  # its next run tries again
            fields = {"schedule_id": schedule_id, "error": str(error)}
            _log.warning("deleted schedule not removed from Temporal", extra=fields)

    async def _admit(self, schedule: ScheduleRow, batch_id: str) -> BatchOrder | _Refusal:
        """Check that a batch of the schedule may be created now, count it for its quota, and build the order.

        Return why it may not be created, if so.
        """
        tenant, template, now = schedule.tenant, schedule.template, datetime.now(UTC).replace(microsecond=0)
        if refusal := await self._caller_refusal(tenant, template, now):
            return refusal
        if await self._database.files.get(tenant, template.input_file_id) is None:
            return _Refusal("file_not_found", f"The input file '{template.input_file_id}' was deleted.")
        own = await self._database.quotas.get(tenant)
        headers = currently_passed(template.caller.headers, self._settings.passed_headers)
        caller = template.caller.model_copy(update={"headers": headers})
        try:
            order = build_order(
                *(template.model_copy(update={"caller": caller}), batch_id, tenant, now, self._settings),
                fairness_key=await self._database.batches.fairness_key(tenant, now),
                fairness_weight=own.weight,
                max_priority=own.highest_priority,
            )
        except PriorityNotAllowed as error:
            return _Refusal("invalid_value", str(error))
        limit = own.limits(self._settings.quotas).live_batches
        if limit and not await self._database.quotas.admit_batch(tenant, batch_id, limit):
            label = self._metrics.tenants(tenant)
            self._metrics.quota_refusals.labels(label, Quota.LIVE_BATCHES.value).inc()
            return _Refusal(
                "rate_limit_exceeded", f"Too many batches at once: at most {limit} may be unfinished."
            )
        return order

    async def _caller_refusal(self, tenant: str, template: BatchTemplate, now: datetime) -> _Refusal | None:
        """Return why the tenant, or the API key with which the schedule was created, may not be used now."""
        row = await self._database.tenants.get(tenant)
        if row is not None and row.disabled_at is not None:
            return _Refusal("tenant_disabled", f"The tenant '{tenant}' is disabled.")
        key_id = template.caller.key_id
        keys = await self._database.api_keys.all(tenant) if key_id else []
        for key in keys:
            usable = is_usable(now, expires_at=key.expires_at, revoked_at=key.revoked_at, disabled_at=None)
            if key.id == key_id and usable:
                return None
        if not key_id:
            return None
        return _Refusal(
            "key_revoked",
            f"The API key {key_id} of the schedule was revoked or has expired. Change the schedule with "
            "another key, which it then has.",
        )
