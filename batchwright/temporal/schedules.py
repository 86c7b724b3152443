"""Batchwright's schedules in Temporal: `setup temporal` makes whatever SCHEDULES has."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from temporalio.client import (
    Client,
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleAlreadyRunningError,
    ScheduleIntervalSpec,
    ScheduleOverlapPolicy,
    SchedulePolicy,
    ScheduleSpec,
    ScheduleUpdate,
    ScheduleUpdateInput,
)

from batchwright.contracts import audit
from batchwright.contracts.names import CONTROL_QUEUE
from batchwright.contracts.retention import DUE, LITTER, WORKFLOW, Kind, RetentionOrder


@dataclass(frozen=True)
class Planned:
    id: str
    schedule: Schedule


# A run that is still going is not doubled; what was missed while Temporal was away is made up for once.
_SKIP = SchedulePolicy(overlap=ScheduleOverlapPolicy.SKIP, catchup_window=timedelta(hours=1))


def _retention(id: str, kinds: Sequence[Kind], every: timedelta, jitter: timedelta) -> Planned:
    action = ScheduleActionStartWorkflow(
        WORKFLOW, RetentionOrder(left=list(kinds)), id=id, task_queue=CONTROL_QUEUE
    )
    return Planned(id, Schedule(action=action, spec=_every(every, jitter), policy=_SKIP))


def _audit(id: str, every: timedelta, jitter: timedelta) -> Planned:
    action = ScheduleActionStartWorkflow(audit.WORKFLOW, audit.AuditOrder(), id=id, task_queue=CONTROL_QUEUE)
    return Planned(id, Schedule(action=action, spec=_every(every, jitter), policy=_SKIP))


def _every(every: timedelta, jitter: timedelta) -> ScheduleSpec:
    return ScheduleSpec(intervals=[ScheduleIntervalSpec(every=every)], jitter=jitter)


SCHEDULES: tuple[Planned, ...] = (
    _retention("batchwright-retention", DUE, timedelta(hours=1), timedelta(minutes=5)),
    _retention("batchwright-retention-litter", LITTER, timedelta(days=1), timedelta(hours=1)),
    _audit("batchwright-audit", timedelta(days=1), timedelta(hours=1)),
)


async def ensure(client: Client, planned: Planned) -> bool:
    """Whether it was made now; one that was there takes over what is planned, and stays paused if it was."""
    try:
        await client.create_schedule(planned.id, planned.schedule)
    except ScheduleAlreadyRunningError:
        await client.get_schedule_handle(planned.id).update(lambda found: _updated(planned, found))
        return False
    return True


def _updated(planned: Planned, found: ScheduleUpdateInput) -> ScheduleUpdate:
    schedule = Schedule(
        action=planned.schedule.action,
        spec=planned.schedule.spec,
        policy=planned.schedule.policy,
        state=found.description.schedule.state,
    )
    return ScheduleUpdate(schedule=schedule)
