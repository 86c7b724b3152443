"""The query that reads snapshots of several batches.

The fixture `any_database` runs each test in memory and on PostgreSQL.
"""

from batchwright.contracts.temporal_payloads.batch import ErrorCount, ErrorExample
from batchwright.contracts.terms import BatchStatus
from batchwright.database.database import Database
from batchwright.database.tables.batches.batch_snapshots import BatchKey, BatchSnapshot
from batchwright.database.tables.batches.waiting_reasons import WaitingRow, WaitingSource
from tests.integration.database.rows import a_running_batch, after, an_order, an_outcome, slice_progress

ONE, TWO, THEIRS = BatchKey("t", "batch_1"), BatchKey("t", "batch_2"), BatchKey("u", "batch_3")
ERRORS = [ErrorCount(code="http_400", count=2, example=ErrorExample(custom_id="c", message="why"))]


async def test_snapshots_are_the_batches_as_they_are_read_one_by_one(any_database: Database) -> None:
    await a_running_batch(any_database)
    await a_running_batch(any_database, "batch_2")
    await any_database.batches.upsert(an_order("batch_3", "u"))
    await any_database.progress.record([slice_progress(completed=1, failed=2, errors=ERRORS)])
    await any_database.waiting.report(
        WaitingRow(
            tenant="t",
            batch_id="batch_2",
            source=WaitingSource.USER,
            reason="paused",
            since=after(20),
            until=after(60),
        )
    )
    keys = [ONE, TWO, THEIRS]
    read = await any_database.batch_snapshots.read(keys, after(30))
    for key in keys:
        alone = await any_database.batches.get_with_reasons(*key, after(30))
        assert alone is not None
        assert read[key] == BatchSnapshot(*alone)
    assert read[ONE].row.errors_summary[0].count == 2
    assert [each.reason for each in read[TWO].waiting] == ["paused"]
    assert (await any_database.batch_snapshots.read(keys, after(61)))[TWO].waiting == []


async def test_a_batch_of_another_tenant_or_without_a_row_has_no_snapshot(any_database: Database) -> None:
    await a_running_batch(any_database)
    unknown = [BatchKey("u", "batch_1"), BatchKey("t", "batch_9")]
    assert await any_database.batch_snapshots.read(unknown, after(30)) == {}
    assert await any_database.batch_snapshots.read([], after(30)) == {}


async def test_every_change_is_in_the_next_snapshot(any_database: Database) -> None:
    await a_running_batch(any_database)
    first = (await any_database.batch_snapshots.read([ONE], after(30)))[ONE]
    assert (await any_database.batch_snapshots.read([ONE], after(30)))[ONE] == first
    await any_database.progress.record([slice_progress(completed=1)])
    counted = (await any_database.batch_snapshots.read([ONE], after(30)))[ONE]
    assert counted.row.completed == first.row.completed + 1
    await any_database.batch_ends.finish("t", "batch_1", an_outcome(), after(40))
    ended = (await any_database.batch_snapshots.read([ONE], after(50)))[ONE]
    assert ended.row.status is BatchStatus.COMPLETED
