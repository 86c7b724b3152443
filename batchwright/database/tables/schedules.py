"""Tables of the schedules that create batches, and of their runs."""

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from pydantic import field_validator

from batchwright.contracts.message import Message
from batchwright.contracts.temporal_payloads.batch_schedules import BatchTemplate, ScheduleSpec
from batchwright.contracts.terms import BatchStatus
from batchwright.database.list_positions import LAST_POSITION, position_of
from batchwright.database.pool import ConnectionPool
from batchwright.database.records import parse_row
from batchwright.database.sql import queries

KEPT_RUNS = 100  # runs kept for each schedule


class ScheduleRow(ScheduleSpec):
    """A schedule, as stored in the database. Its next due times and its pause are stored only in Temporal.

    `version` increases with each change of the row. After a client has requested a change, `pending` is the
    changed schedule until Temporal has received the change. At all other times, `pending` is None.
    """

    description: str = ""
    template: BatchTemplate
    created_at: datetime
    version: int = 1
    pending: "ScheduleRow | None" = None

    @field_validator("template", mode="before")
    @classmethod
    def _parse_template(cls, value: object) -> object:
        return BatchTemplate.model_validate_json(value) if isinstance(value, str) else value

    @field_validator("pending", mode="before")
    @classmethod
    def _parse_pending(cls, value: object) -> object:
        return cls.model_validate_json(value) if isinstance(value, str) else value


class ScheduleRunRow(Message):
    """One time at which a schedule was due, and the result.

    If a batch was created, `batch_id` is the id of the batch, and `status` is the batch's status as users see
    it. If the batch was deleted, `status` is None. If no batch was created, `batch_id` and `status` are None,
    and `code` and `message` say why.
    """

    id: str
    scheduled_at: datetime
    batch_id: str | None = None
    status: BatchStatus | None = None
    code: str | None = None
    message: str | None = None


class SchedulesTable(Protocol):
    """Table of the schedules of all tenants.

    If the tenant has no such schedule, `get` and `update` return None, and `delete` returns False. While a
    schedule uses a file, and for a day after that, the file does not expire.
    """

    async def insert(self, row: ScheduleRow, limit: int) -> bool:
        """Insert a schedule, and return True.

        If the tenant already has `limit` schedules, insert nothing and return False. If `limit` is `0`, there
        is no limit.
        """
        ...

    async def get(self, tenant: str, id: str) -> ScheduleRow | None: ...

    async def page(self, tenant: str, *, limit: int, after: str | None) -> tuple[list[ScheduleRow], bool]:
        """Return at most `limit` schedules of a tenant, newest first. The second item is True if more follow.

        `after` is the id of the last schedule of the previous page; None for the first page. Raises
        UnknownCursor if the tenant has no schedule `after`.
        """
        ...

    async def update(self, row: ScheduleRow) -> ScheduleRow | None:
        """Replace all fields of a schedule except `created_at`, and return the schedule with its new version.

        If the stored version is not `row.version`, the schedule was changed in between. In this case, change
        nothing and return None.
        """
        ...

    async def delete(self, tenant: str, id: str) -> bool:
        """Delete a schedule and the records of its runs. Return False if there is no such schedule.

        Batches that the schedule has created are not deleted.
        """
        ...

    async def record_run(self, tenant: str, schedule_id: str, run: ScheduleRunRow) -> None:
        """Store the run `run` of a schedule: the batch that was created at a due time, or an error.

        If a run with the same id is stored already, replace its result. Only the latest 100 runs of a
        schedule are kept. If the schedule does not exist, do nothing. `run.status` is ignored.
        """
        ...

    async def runs(self, tenant: str, schedule_id: str, limit: int) -> list[ScheduleRunRow]:
        """Return the latest runs of a schedule, at most `limit`, newest first."""
        ...


@dataclass(frozen=True)
class ScheduleQueries:
    lock_tenant: str
    count: str
    insert: str
    get: str
    position: str
    page: str
    keep_input: str
    update: str
    delete: str
    record_run: str
    forget_runs: str
    runs: str


class PostgresSchedules(SchedulesTable):
    def __init__(self, connections: ConnectionPool) -> None:
        self._connections = connections
        self._sql = queries(ScheduleQueries, "schedules")

    async def insert(self, row: ScheduleRow, limit: int) -> bool:
        async with self._connections.transaction() as session:
            await session.execute(self._sql.lock_tenant, row.tenant)
            found = await session.fetchrow(self._sql.count, row.tenant)
            if limit and found is not None and found["count"] >= limit:
                return False
            await session.execute(self._sql.insert, *_values(row), row.created_at)
            return True

    async def get(self, tenant: str, id: str) -> ScheduleRow | None:
        found = await self._connections.fetchrow(self._sql.get, tenant, id)
        return None if found is None else parse_row(ScheduleRow, found)

    async def page(self, tenant: str, *, limit: int, after: str | None) -> tuple[list[ScheduleRow], bool]:
        async with self._connections.session() as session:
            position = LAST_POSITION
            if after is not None:
                position = await position_of(session, self._sql.position, tenant, after)
            found = await session.fetch(self._sql.page, tenant, *position, limit + 1)
        return [parse_row(ScheduleRow, each) for each in found[:limit]], len(found) > limit

    async def update(self, row: ScheduleRow) -> ScheduleRow | None:
        async with self._connections.transaction() as session:
            await session.execute(self._sql.keep_input, row.tenant, row.id)
            pending = row.pending and row.pending.model_dump_json()
            found = await session.fetchrow(self._sql.update, *_values(row), pending)
        return None if found is None else parse_row(ScheduleRow, found)

    async def delete(self, tenant: str, id: str) -> bool:
        async with self._connections.transaction() as session:
            await session.execute(self._sql.keep_input, tenant, id)
            return await session.fetchrow(self._sql.delete, tenant, id) is not None

    async def record_run(self, tenant: str, schedule_id: str, run: ScheduleRunRow) -> None:
        async with self._connections.transaction() as session:
            await session.execute(
                self._sql.record_run,
                tenant,
                schedule_id,
                run.id,
                run.scheduled_at,
                run.batch_id,
                run.code,
                run.message,
            )
            await session.execute(self._sql.forget_runs, tenant, schedule_id, KEPT_RUNS)

    async def runs(self, tenant: str, schedule_id: str, limit: int) -> list[ScheduleRunRow]:
        found = await self._connections.fetch(self._sql.runs, tenant, schedule_id, limit)
        return [parse_row(ScheduleRunRow, each) for each in found]


def _values(row: ScheduleRow) -> tuple[object, ...]:
    template = row.template
    return (
        *(row.tenant, row.id, row.description, row.cron, row.time_zone, row.overlap.value),
        *(template.input_file_id, template.model_dump_json(), row.version),
    )
