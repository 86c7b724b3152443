"""Changes of schedules, in the database and in Temporal."""

from batchwright.database.tables.schedules import ScheduleRow, SchedulesTable
from batchwright.temporal.batch_schedules import BatchSchedules, ScheduleMissing, TimeZoneUnknown


async def apply_pending(
    row: ScheduleRow, table: SchedulesTable, temporal: BatchSchedules
) -> ScheduleRow | None:
    """Apply the pending change of a schedule, first in Temporal and then in the schedule's row.

    A change is pending if a client has requested it and it is not applied yet. Return the row with the
    change; None if the schedule was deleted meanwhile. If no change is pending, return the row unchanged.

    The change stays pending until both steps are done. So if a crash interrupts them, the next call repeats
    them. If another caller changes the row between the two steps, both steps are done again with the new row.

    Raises:
        TimeZoneUnknown: Temporal does not know the new time zone. The change is dropped, so the row stays as
            it was.
        TemporalUnavailable: Temporal does not respond. The change stays pending.
    """
    if row.pending is None:
        return row
    found: ScheduleRow | None = row
    while found is not None:
        changed = (found.pending or found).model_copy(update={"version": found.version, "pending": None})
        try:
            await temporal.update(changed)
        except TimeZoneUnknown:
            await table.update(found.model_copy(update={"pending": None}))
            raise
        except ScheduleMissing:  # a resume will create it from the row
            pass
        stored = await table.update(changed)
        if stored is not None:
            return stored
        found = await table.get(row.tenant, row.id)
    return None
