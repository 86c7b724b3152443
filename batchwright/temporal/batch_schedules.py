"""Schedules of tenants in Temporal. At each due time, Temporal starts a workflow that creates a batch, and
waits until this batch has ended.
"""

import re
from datetime import datetime, timedelta
from typing import NamedTuple, Protocol
from uuid import uuid4

from temporalio.api.enums.v1 import ScheduleOverlapPolicy as OverlapMessage
from temporalio.api.schedule.v1 import ScheduleSpec as SpecMessage
from temporalio.api.workflowservice.v1 import DescribeScheduleRequest, UpdateScheduleRequest
from temporalio.client import (
    Client,
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleAlreadyRunningError,
    ScheduleHandle,
    ScheduleOverlapPolicy,
    SchedulePolicy,
    ScheduleState,
)
from temporalio.client import ScheduleSpec as TemporalScheduleSpec
from temporalio.common import Priority, SearchAttributePair, TypedSearchAttributes
from temporalio.service import RPCError, RPCStatusCode

from batchwright.contracts import search_attributes, temporal_names
from batchwright.contracts.temporal_payloads.batch_schedules import (
    WORKFLOW,
    OverlapPolicy,
    ScheduleRef,
    ScheduleSpec,
)
from batchwright.settings import Settings
from batchwright.temporal.errors import translated_errors

_RPC_TIMEOUT = timedelta(seconds=10)
# A batch that was due while Temporal was unavailable is created later, but not much later.
_CATCHUP = timedelta(hours=1)
_UPDATES = 5  # attempts to change a schedule that other callers change at the same time
# Part of the messages of Go's time.LoadLocation, which Temporal passes on.
_ZONE = re.compile("unknown time zone|invalid location name")
_CHANGED = "changed by its tenant"
_CHANGE_NOTE = re.compile(rf"(^|; ){_CHANGED} \([0-9a-f]{{32}}\)$")
_POLICIES = {
    OverlapPolicy.SKIP: ScheduleOverlapPolicy.SKIP,
    OverlapPolicy.BUFFER_ONE: ScheduleOverlapPolicy.BUFFER_ONE,
    OverlapPolicy.BUFFER_ALL: ScheduleOverlapPolicy.BUFFER_ALL,
    OverlapPolicy.CANCEL_OTHER: ScheduleOverlapPolicy.CANCEL_OTHER,
    OverlapPolicy.ALLOW_ALL: ScheduleOverlapPolicy.ALLOW_ALL,
}


class ScheduleMissing(Exception):
    """Raised if Temporal has no such schedule. The message is the id of the schedule."""


class TimeZoneUnknown(Exception):
    """Raised if Temporal does not know a schedule's time zone. The message is Temporal's error message."""


class ScheduleStatus(NamedTuple):
    """State of a schedule in Temporal.

    Attributes:
        next_times: the next times at which the schedule is due, up to ten; empty while the schedule is
            paused.
        skipped: number of due times at which no batch was created, because the previous batch had not ended
            (overlap policy), or because Temporal was unavailable for too long.
        is_running: True if a batch of the schedule has not ended.
    """

    paused: bool
    next_times: list[datetime]
    skipped: int
    is_running: bool


class BatchSchedules(Protocol):
    """Access to the schedules of all tenants in Temporal.

    Callers must check that an id belongs to the tenant. All methods raise TemporalUnavailable if the server
    does not respond. If a schedule does not exist, all methods except `create` and `delete` raise
    ScheduleMissing.
    """

    async def create(self, spec: ScheduleSpec) -> None:
        """Create a schedule. If it exists already, nothing happens.

        Raises TimeZoneUnknown if Temporal does not know its time zone.
        """
        ...

    async def update(self, spec: ScheduleSpec) -> None:
        """Change a schedule. A paused schedule stays paused.

        Raises TimeZoneUnknown if Temporal does not know the new time zone.
        """
        ...

    async def pause(self, id: str) -> None: ...

    async def resume(self, id: str) -> None: ...

    async def trigger(self, id: str) -> None:
        """Start a batch of the schedule now, even if the schedule is paused. If a batch of the schedule has
        not ended, the schedule's overlap policy decides what happens.
        """
        ...

    async def delete(self, id: str) -> None:
        """Delete a schedule. Its running batches continue. If it does not exist, nothing happens."""
        ...

    async def status(self, id: str) -> ScheduleStatus: ...


class TemporalBatchSchedules(BatchSchedules):
    def __init__(self, client: Client, settings: Settings) -> None:
        self._client, self._settings = client, settings

    async def create(self, spec: ScheduleSpec) -> None:
        async with translated_errors(self._settings, ScheduleMissing(spec.id)):
            try:
                await self._client.create_schedule(
                    spec.id,
                    _schedule(spec),
                    search_attributes=_search_attributes(spec.tenant),
                    rpc_timeout=_RPC_TIMEOUT,
                )
            except ScheduleAlreadyRunningError:
                return
            except RPCError as error:
                raise _unless_time_zone(error) from error

    async def update(self, spec: ScheduleSpec) -> None:
        async with translated_errors(self._settings, ScheduleMissing(spec.id)):
            try:
                await self._update(spec)
            except RPCError as error:
                raise _unless_time_zone(error) from error

    async def _update(self, spec: ScheduleSpec) -> None:
        """Replace the times of a schedule and its overlap policy (what happens if the previous batch has not
        ended). Keep everything else.

        The SDK's own update reads the schedule and writes it back. If the schedule is paused between these
        two steps, the SDK's update undoes the pause. Therefore, this update uses a conflict token: if the
        schedule has changed after it was read, Temporal ignores the update without an error. To notice this,
        each update adds a unique text to the end of the schedule's note. If the text is not found there
        afterwards, the update is repeated.
        """
        service, namespace = self._client.workflow_service, self._client.namespace
        change = f"{_CHANGED} ({uuid4().hex})"
        request = DescribeScheduleRequest(namespace=namespace, schedule_id=spec.id)
        for _ in range(_UPDATES):
            found = await service.describe_schedule(request, retry=True, timeout=_RPC_TIMEOUT)
            schedule = found.schedule
            if schedule.state.notes.endswith(change):
                return
            schedule.spec.CopyFrom(SpecMessage(cron_string=[spec.cron], timezone_name=spec.time_zone))
            schedule.policies.overlap_policy = OverlapMessage.ValueType(_POLICIES[spec.overlap])
            earlier = _CHANGE_NOTE.sub("", schedule.state.notes)
            schedule.state.notes = f"{earlier}; {change}" if earlier else change
            update = UpdateScheduleRequest(
                namespace=namespace,
                schedule_id=spec.id,
                schedule=schedule,
                conflict_token=found.conflict_token,
                identity=self._client.identity,
                request_id=uuid4().hex,
            )
            await service.update_schedule(update, retry=True, timeout=_RPC_TIMEOUT)
        raise RPCError(f"schedule {spec.id} is changed by others all the time", RPCStatusCode.ABORTED, b"")

    async def pause(self, id: str) -> None:
        async with translated_errors(self._settings, ScheduleMissing(id)):
            await self._handle(id).pause(note="paused by its tenant", rpc_timeout=_RPC_TIMEOUT)

    async def resume(self, id: str) -> None:
        async with translated_errors(self._settings, ScheduleMissing(id)):
            await self._handle(id).unpause(note="resumed by its tenant", rpc_timeout=_RPC_TIMEOUT)

    async def trigger(self, id: str) -> None:
        async with translated_errors(self._settings, ScheduleMissing(id)):
            await self._handle(id).trigger(rpc_timeout=_RPC_TIMEOUT)

    async def delete(self, id: str) -> None:
        try:
            async with translated_errors(self._settings, ScheduleMissing(id)):
                await self._handle(id).delete(rpc_timeout=_RPC_TIMEOUT)
        except ScheduleMissing:
            return

    async def status(self, id: str) -> ScheduleStatus:
        async with translated_errors(self._settings, ScheduleMissing(id)):
            found = await self._handle(id).describe(rpc_timeout=_RPC_TIMEOUT)
        info, paused = found.info, found.schedule.state.paused
        return ScheduleStatus(
            paused=paused,
            next_times=[] if paused else list(info.next_action_times),
            skipped=info.num_actions_skipped_overlap + info.num_actions_missed_catchup_window,
            is_running=bool(info.running_actions),
        )

    def _handle(self, id: str) -> ScheduleHandle:
        return self._client.get_schedule_handle(id)


def _schedule(spec: ScheduleSpec) -> Schedule:
    action = ScheduleActionStartWorkflow(
        WORKFLOW,
        ScheduleRef(tenant=spec.tenant, schedule_id=spec.id),
        id=spec.id,  # Temporal appends the time
        task_queue=temporal_names.CONTROL_QUEUE,
        typed_search_attributes=_search_attributes(spec.tenant),
        static_summary=f"a batch of {spec.id}, for tenant {spec.tenant}",
        priority=Priority(fairness_key=spec.tenant),
    )
    return Schedule(
        action=action,
        spec=TemporalScheduleSpec(cron_expressions=[spec.cron], time_zone_name=spec.time_zone),
        policy=SchedulePolicy(overlap=_POLICIES[spec.overlap], catchup_window=_CATCHUP),
        state=ScheduleState(),
    )


def _search_attributes(tenant: str) -> TypedSearchAttributes:
    return TypedSearchAttributes([SearchAttributePair(search_attributes.TENANT, tenant)])


def _unless_time_zone(error: RPCError) -> Exception:
    """Return TimeZoneUnknown if `error` means that Temporal rejects a schedule's time zone. Return other
    errors unchanged.

    Other errors, such as a missing search attribute, have the same status. Therefore, the error's message is
    checked, too.
    """
    is_rejected = error.status is RPCStatusCode.INVALID_ARGUMENT
    return TimeZoneUnknown(error.message) if is_rejected and _ZONE.search(error.message) else error
