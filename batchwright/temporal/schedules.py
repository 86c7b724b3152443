"""Batchwright's schedules in Temporal: `setup temporal` makes whatever SCHEDULES has."""

from dataclasses import dataclass

from temporalio.client import (
    Client,
    Schedule,
    ScheduleAlreadyRunningError,
    ScheduleUpdate,
    ScheduleUpdateInput,
)


@dataclass(frozen=True)
class Planned:
    id: str
    schedule: Schedule


SCHEDULES: tuple[Planned, ...] = ()


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
