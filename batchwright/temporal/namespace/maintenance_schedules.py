"""Temporal schedules that delete old data (retention) and check the consistency of the stored data.

The command `batchwright setup temporal` creates them.
"""

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

from batchwright.contracts.temporal_names import CONTROL_QUEUE
from batchwright.contracts.temporal_payloads import consistency
from batchwright.contracts.temporal_payloads.retention import (
    EXPIRED_KINDS,
    LITTER_KINDS,
    WORKFLOW,
    RetentionKind,
    RetentionOrder,
)


@dataclass(frozen=True)
class PlannedSchedule:
    id: str
    schedule: Schedule


# No second run starts while one is running; runs missed while Temporal was unavailable are made up once.
_SKIP = SchedulePolicy(overlap=ScheduleOverlapPolicy.SKIP, catchup_window=timedelta(hours=1))


def _retention(
    id: str, kinds: Sequence[RetentionKind], every: timedelta, jitter: timedelta
) -> PlannedSchedule:
    action = ScheduleActionStartWorkflow(
        WORKFLOW, RetentionOrder(kinds=list(kinds)), id=id, task_queue=CONTROL_QUEUE
    )
    return PlannedSchedule(id, Schedule(action=action, spec=_every(every, jitter), policy=_SKIP))


def _check(id: str, every: timedelta, jitter: timedelta) -> PlannedSchedule:
    action = ScheduleActionStartWorkflow(
        consistency.WORKFLOW, consistency.ConsistencyCheckOrder(), id=id, task_queue=CONTROL_QUEUE
    )
    return PlannedSchedule(id, Schedule(action=action, spec=_every(every, jitter), policy=_SKIP))


def _every(every: timedelta, jitter: timedelta) -> ScheduleSpec:
    return ScheduleSpec(intervals=[ScheduleIntervalSpec(every=every)], jitter=jitter)


SCHEDULES: tuple[PlannedSchedule, ...] = (
    _retention("batchwright-retention", EXPIRED_KINDS, timedelta(hours=1), timedelta(minutes=5)),
    _retention("batchwright-retention-litter", LITTER_KINDS, timedelta(days=1), timedelta(hours=1)),
    _check("batchwright-consistency-check", timedelta(days=1), timedelta(hours=1)),
)


async def ensure_schedule(client: Client, planned: PlannedSchedule) -> bool:
    """Create the schedule `planned`, or update it if it exists. Return True if it was created.

    If an operator has paused the schedule, it stays paused.
    """
    try:
        await client.create_schedule(planned.id, planned.schedule)
    except ScheduleAlreadyRunningError:
        await client.get_schedule_handle(planned.id).update(lambda found: _updated(planned, found))
        return False
    return True


def _updated(planned: PlannedSchedule, found: ScheduleUpdateInput) -> ScheduleUpdate:
    schedule = Schedule(
        action=planned.schedule.action,
        spec=planned.schedule.spec,
        policy=planned.schedule.policy,
        state=found.description.schedule.state,
    )
    return ScheduleUpdate(schedule=schedule)
