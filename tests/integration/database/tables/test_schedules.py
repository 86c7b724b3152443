"""The tables of schedules and their runs, in PostgreSQL and in memory."""

from datetime import UTC, datetime, timedelta

import pytest

from batchwright.contracts.temporal_payloads.batch import Caller
from batchwright.contracts.temporal_payloads.batch_schedules import BatchTemplate, OverlapPolicy
from batchwright.contracts.temporal_payloads.retention import SweepPosition
from batchwright.contracts.terms import BatchStatus, Endpoint
from batchwright.database.database import Database
from batchwright.database.errors import UnknownCursor
from batchwright.database.tables import schedules
from batchwright.database.tables.schedules import ScheduleRow, ScheduleRunRow
from tests.fakes.tables import schedules as memory_schedules
from tests.integration.database.rows import LONG_AGO, START, a_file, after, an_order

TEMPLATE = BatchTemplate(
    input_file_id="file-1",
    endpoint=Endpoint.CHAT_COMPLETIONS,
    completion_window="6h",
    window_seconds=21_600,
    metadata={"run": "nightly \u0000 with NUL"},
    max_cost="2.50",
    caller=Caller(key_id="key_1", headers={"x-team": "a"}),
)


def a_schedule(id: str = "schedule_1", **changes: object) -> ScheduleRow:
    row = ScheduleRow(
        tenant="t",
        id=id,
        description="mine",
        cron="0 2 * * *",
        time_zone="Europe/Berlin",
        overlap=OverlapPolicy.SKIP,
        template=TEMPLATE,
        created_at=START,
    )
    return row.model_copy(update=changes)


def a_run(number: int, **changes: object) -> ScheduleRunRow:
    row = ScheduleRunRow(id=f"run-{number}", scheduled_at=after(number), batch_id=f"batch_{number}")
    return row.model_copy(update=changes)


async def test_a_schedule_is_stored_changed_and_deleted(any_database: Database) -> None:
    table, row = any_database.schedules, a_schedule()
    assert await table.insert(row, 0)
    assert await table.get("t", "schedule_1") == row
    template = TEMPLATE.model_copy(update={"input_file_id": "file-2"})
    overlap = OverlapPolicy.ALLOW_ALL
    other = a_schedule(cron="0 3 * * *", time_zone="UTC", overlap=overlap, description="", template=template)
    later = other.model_copy(update={"created_at": after(9)})
    changed = other.model_copy(update={"version": 2})
    assert await table.update(later) == changed == await table.get("t", "schedule_1")
    assert await table.update(row) is None  # another change came first
    assert await table.get("t", "schedule_1") == changed
    assert await table.delete("t", "schedule_1")
    assert not await table.delete("t", "schedule_1")
    assert await table.update(changed) is None


async def test_a_pending_change_is_stored_with_the_schedule(any_database: Database) -> None:
    table, row = any_database.schedules, a_schedule()
    await table.insert(row, 0)
    pending = row.model_copy(update={"pending": a_schedule(cron="0 3 * * *", description="\u0000")})
    expected = pending.model_copy(update={"version": 2})
    assert await table.update(pending) == expected == await table.get("t", "schedule_1")
    stored = await table.update(expected.model_copy(update={"pending": None}))
    assert stored == row.model_copy(update={"version": 3})


async def test_tenants_have_their_own_schedules(any_database: Database) -> None:
    table = any_database.schedules
    await table.insert(a_schedule(), 0)
    await table.record_run("t", "schedule_1", a_run(1))
    await table.record_run("other", "schedule_1", a_run(2))
    assert await table.get("other", "schedule_1") is None
    assert not await table.delete("other", "schedule_1")
    assert await table.update(a_schedule(tenant="other")) is None
    assert await table.runs("other", "schedule_1", 10) == []
    assert await table.page("other", limit=10, after=None) == ([], False)
    with pytest.raises(UnknownCursor):
        await table.page("other", limit=10, after="schedule_1")
    assert len(await table.runs("t", "schedule_1", 10)) == 1


async def test_a_tenant_gets_no_more_schedules_than_the_limit(any_database: Database) -> None:
    table = any_database.schedules
    assert await table.insert(a_schedule("schedule_1"), 1)
    assert not await table.insert(a_schedule("schedule_2"), 1)
    assert await table.insert(a_schedule("schedule_2", tenant="other"), 1)
    assert await table.get("t", "schedule_2") is None


async def test_schedules_are_listed_in_pages_newest_first(any_database: Database) -> None:
    table = any_database.schedules
    rows = [a_schedule(f"schedule_{number}", created_at=after(number)) for number in range(3)]
    for row in rows:
        await table.insert(row, 0)
    assert await table.page("t", limit=2, after=None) == ([rows[2], rows[1]], True)
    assert await table.page("t", limit=2, after="schedule_1") == ([rows[0]], False)


async def test_runs_show_the_status_of_their_batches_and_only_the_latest_are_kept(
    any_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (schedules, memory_schedules):
        monkeypatch.setattr(module, "KEPT_RUNS", 3)
    table = any_database.schedules
    await table.insert(a_schedule(), 0)
    await any_database.batches.upsert(an_order("batch_4"))
    await any_database.batches.request_cancel("t", "batch_4", after(5))
    refused = a_run(3, batch_id=None, code="file_not_found", message="It was deleted.")
    for run in (a_run(1), a_run(2), refused, a_run(4)):
        await table.record_run("t", "schedule_1", run)
    shown = a_run(4, status=BatchStatus.CANCELLING)
    assert await table.runs("t", "schedule_1", 10) == [shown, refused, a_run(2)]
    assert await table.runs("t", "schedule_1", 1) == [shown]


async def test_a_later_attempt_of_a_run_replaces_the_earlier_one(any_database: Database) -> None:
    table = any_database.schedules
    await table.insert(a_schedule(), 0)
    refused = a_run(1, batch_id=None, code="rate_limit_exceeded", message="Too many.")
    for run in (refused, a_run(1)):
        await table.record_run("t", "schedule_1", run)
    assert await table.runs("t", "schedule_1", 10) == [a_run(1)]


async def test_runs_of_a_deleted_schedule_are_gone(any_database: Database) -> None:
    table = any_database.schedules
    await table.insert(a_schedule(), 0)
    await table.record_run("t", "schedule_1", a_run(1))
    await table.delete("t", "schedule_1")
    await table.record_run("t", "schedule_1", a_run(2))
    await table.insert(a_schedule(), 0)
    assert await table.runs("t", "schedule_1", 10) == []


async def test_a_file_that_a_schedule_reads_does_not_expire(any_database: Database) -> None:
    """`file-2` is as old, but no schedule reads it, so it expires. `file-1` expires a day after its schedule
    is deleted.
    """
    files, retention = any_database.files, any_database.retention
    for id in ("file-1", "file-2"):
        await files.insert(a_file(id, created_at=LONG_AGO, expires_at=LONG_AGO + timedelta(days=1)))
    await any_database.schedules.insert(a_schedule(), 0)
    kept = await files.get("t", "file-1")
    assert kept is not None
    assert await files.get("t", "file-2") is None

    async def expired(now: datetime) -> list[str]:
        return [file.id for file in await retention.expired_files(now, SweepPosition(), 10)]

    now = datetime.now(UTC)
    assert await expired(now) == ["file-2"]
    assert not await retention.remove_file(kept)
    await any_database.schedules.delete("t", "schedule_1")
    assert await expired(now + timedelta(hours=23)) == ["file-2"]
    assert await expired(now + timedelta(hours=25)) == ["file-2", "file-1"]


@pytest.mark.parametrize("action", ["delete", "change"])
async def test_a_batch_of_a_schedule_keeps_an_expired_file_after_the_schedule_stops_reading_it(
    any_database: Database, action: str
) -> None:
    """The batch was created after the file had expired. Its input may be read much later."""
    for id in ("file-1", "file-2"):
        await any_database.files.insert(a_file(id, created_at=LONG_AGO, expires_at=after(-86_400)))
    await any_database.schedules.insert(a_schedule(), 0)
    await any_database.batches.upsert(an_order("batch_1"))
    if action == "delete":
        await any_database.schedules.delete("t", "schedule_1")
    else:
        template = TEMPLATE.model_copy(update={"input_file_id": "file-3"})
        await any_database.schedules.update(a_schedule(template=template))
    file = await any_database.files.get("t", "file-1")
    assert file is not None
    assert file.expires_at is not None
    assert file.expires_at > an_order("batch_1").created_at
    assert await any_database.files.get("t", "file-2") is None
    assert not await any_database.retention.remove_file(file)


async def test_a_file_that_a_schedule_reads_can_be_deleted(any_database: Database) -> None:
    await any_database.files.insert(a_file(created_at=LONG_AGO, expires_at=LONG_AGO + timedelta(days=1)))
    await any_database.schedules.insert(a_schedule(), 0)
    assert await any_database.files.delete("t", "file-1") is not None
    assert await any_database.files.get("t", "file-1") is None


async def test_a_batch_that_starts_later_keeps_its_start(any_database: Database) -> None:
    """Metrics and forecasts use its start as the beginning of the batch."""
    order = an_order(start_at=after(600), deadline=after(1200))
    await any_database.batches.upsert(order)
    row = await any_database.batches.get("t", "batch_1")
    assert row is not None
    assert row.order == order
    (live,) = await any_database.fleet.live()
    assert (live.created_at, live.entered_at) == (after(600), after(600))
