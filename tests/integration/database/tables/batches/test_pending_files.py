"""Batches that ended before their files were written, in memory and in PostgreSQL."""

from datetime import UTC, datetime, timedelta

import pytest

from batchwright.contracts.temporal_payloads.batch import ModelCounts
from batchwright.contracts.temporal_payloads.retention import SWEEP_START as FIRST
from batchwright.contracts.terms import BatchStatus, ValidationError
from batchwright.database.database import Database
from batchwright.database.errors import FileInUse, UnknownBatch
from batchwright.database.records import BatchRow, EndedBatch
from batchwright.database.tables.operations.retention import EndedItem
from tests.integration.database.rows import (
    LONG_AGO,
    a_file,
    a_running_batch,
    after,
    an_order,
    an_outcome,
    slice_progress,
)

SOON = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)
ERRORS = [ValidationError(code="system_error", message="no storage")]


async def ended(database: Database, until: datetime = SOON) -> BatchRow:
    await a_running_batch(database)
    await database.progress.record([slice_progress(completed=2)])
    row, moved = await database.batch_ends.end_without_files(
        "t", "batch_1", BatchStatus.EXPIRED, [], after(30), files_until=until
    )
    assert moved
    return row


async def test_the_end_says_that_the_files_are_pending(any_database: Database) -> None:
    row = await ended(any_database)
    assert (row.status, row.expired_at, row.files_pending) == (BatchStatus.EXPIRED, after(30), True)
    assert (row.total, row.completed, row.failed) == (10, 2, 1)
    assert await any_database.batches.get("t", "batch_1") == row
    assert await any_database.batch_list.count_live("t") == 0


async def test_the_files_come_once_and_the_end_stays(any_database: Database) -> None:
    before = await ended(any_database)
    outcome = an_outcome(BatchStatus.EXPIRED, models=[ModelCounts(model="a", lines=3, completed=3)])
    assert await any_database.batch_ends.finish("t", "batch_1", outcome, after(40)) == EndedBatch(
        before, moved=False
    )
    assert await any_database.files.get("t", "file-out") is None
    row, moved = await any_database.batch_ends.add_files("t", "batch_1", outcome)
    assert moved
    assert not row.files_pending
    assert (row.status, row.expired_at, row.output_file_id) == (BatchStatus.EXPIRED, after(30), "file-out")
    assert (row.completed, row.failed, row.usage) == (8, 2, outcome.usage)
    assert await any_database.files.get("t", "file-out") == outcome.output
    again = an_outcome(completed=1, output=a_file("file-other"))
    assert await any_database.batch_ends.add_files("t", "batch_1", again) == EndedBatch(row, moved=False)
    assert await any_database.files.get("t", "file-other") is None


async def test_pending_files_can_be_given_up_once(any_database: Database) -> None:
    await ended(any_database)
    row, moved = await any_database.batch_ends.abandon_files(
        "t", "batch_1", ERRORS, total=12, keep_until=after(99)
    )
    assert moved
    assert (row.status, row.files_pending, row.errors) == (BatchStatus.EXPIRED, False, ERRORS)
    assert (row.total, row.results_kept_until) == (12, after(99))
    _, moved = await any_database.batch_ends.abandon_files("t", "batch_1", [])
    assert not moved
    _, moved = await any_database.batch_ends.add_files("t", "batch_1", an_outcome())
    assert not moved


async def test_files_of_a_batch_without_a_row_are_an_error(any_database: Database) -> None:
    with pytest.raises(UnknownBatch):
        await any_database.batch_ends.add_files("t", "batch_1", an_outcome())
    with pytest.raises(UnknownBatch):
        await any_database.batch_ends.abandon_files("t", "batch_1", [])


async def test_the_input_stays_until_the_files_are_written(any_database: Database) -> None:
    input_file = a_file(expires_at=LONG_AGO)
    await any_database.files.insert(input_file)
    await any_database.batches.upsert(an_order(created_at=LONG_AGO - timedelta(seconds=1)))
    await any_database.batch_ends.end_without_files(
        "t", "batch_1", BatchStatus.EXPIRED, [], LONG_AGO, files_until=SOON
    )
    assert await any_database.files.get("t", "file-1") == input_file
    with pytest.raises(FileInUse):
        await any_database.files.delete("t", "file-1")
    table = any_database.retention
    assert await table.expired_files(after(1), FIRST, 9) == []
    assert not await table.remove_file(input_file)
    await any_database.batch_ends.add_files("t", "batch_1", an_outcome(BatchStatus.EXPIRED))
    assert await any_database.files.get("t", "file-1") is None
    assert await table.expired_files(after(1), FIRST, 9) == [input_file]
    assert await table.remove_file(input_file)


async def test_retention_leaves_the_objects_until_the_files_are_written(any_database: Database) -> None:
    await ended(any_database)
    table = any_database.retention
    assert await table.ended_batches(after(100), FIRST, 9) == []
    assert await table.live_batches("t") == {"batch_1"}
    await any_database.batch_ends.add_files("t", "batch_1", an_outcome(BatchStatus.EXPIRED))
    assert await table.ended_batches(after(100), FIRST, 9) == [EndedItem("t", "batch_1", after(30))]
    assert await table.live_batches("t") == frozenset()


async def test_a_batch_whose_run_never_writes_the_files_is_cleared_after_its_time(
    any_database: Database,
) -> None:
    await ended(any_database, until=LONG_AGO)
    table = any_database.retention
    [found] = await table.ended_batches(after(100), FIRST, 9)
    assert await table.live_batches("t") == frozenset()
    await table.record_sweep(found, after(200))
    row = await any_database.batches.get("t", "batch_1")
    assert row is not None
    assert not row.files_pending
