"""Fake of the schedules in Temporal. It keeps them in memory and starts no runs."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from batchwright.contracts.temporal_payloads.batch_schedules import ScheduleSpec
from batchwright.temporal.batch_schedules import (
    BatchSchedules,
    ScheduleMissing,
    ScheduleStatus,
    TimeZoneUnknown,
)

NEXT_TIME = datetime(2030, 1, 1, 2, tzinfo=UTC)


@dataclass
class StoredSchedule:
    spec: ScheduleSpec
    paused: bool = False
    triggers: int = 0
    is_running: bool = False


class MemoryBatchSchedules(BatchSchedules):
    """A fake of the schedules in Temporal. `stored` has them by id.

    If a test sets `failing` to an exception, each call raises it.
    """

    def __init__(self) -> None:
        self.stored: dict[str, StoredSchedule] = {}
        self.failing: Exception | None = None
        # Awaited once by each of the first two updates, so that a test can make them concurrent.
        self.before_update: Callable[[], Awaitable[object]] | None = None
        self._updates = 0

    async def create(self, spec: ScheduleSpec) -> None:
        self._enter()
        _check_time_zone(spec)
        self.stored.setdefault(spec.id, StoredSchedule(spec))

    async def update(self, spec: ScheduleSpec) -> None:
        self._updates += 1
        if self.before_update is not None and self._updates <= 2:
            await self.before_update()
        found = self._find(spec.id)
        _check_time_zone(spec)
        found.spec = spec

    async def pause(self, id: str) -> None:
        self._find(id).paused = True

    async def resume(self, id: str) -> None:
        self._find(id).paused = False

    async def trigger(self, id: str) -> None:
        self._find(id).triggers += 1

    async def delete(self, id: str) -> None:
        self._enter()
        self.stored.pop(id, None)

    async def status(self, id: str) -> ScheduleStatus:
        found = self._find(id)
        return ScheduleStatus(found.paused, [] if found.paused else [NEXT_TIME], 0, found.is_running)

    def _find(self, id: str) -> StoredSchedule:
        self._enter()
        if id not in self.stored:
            raise ScheduleMissing(id)
        return self.stored[id]

    def _enter(self) -> None:
        if self.failing is not None:
            raise self.failing


def _check_time_zone(spec: ScheduleSpec) -> None:
    try:
        ZoneInfo(spec.time_zone)
    except ZoneInfoNotFoundError as error:
        raise TimeZoneUnknown(str(error)) from None
