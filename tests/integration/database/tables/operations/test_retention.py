"""The queries that find and delete expired data, in memory and in PostgreSQL."""

from datetime import UTC, datetime, timedelta

from batchwright.contracts.temporal_payloads.batch import BatchOrder
from batchwright.contracts.temporal_payloads.retention import SWEEP_START, RetentionKind, SweepPosition
from batchwright.contracts.terms import BatchStatus
from batchwright.database.database import Database
from batchwright.database.records import FileRow, IdempotencyClaim, UploadRow
from batchwright.database.tables.operations.retention import EndedItem
from tests.integration.database.call_rows import a_rolling_order
from tests.integration.database.rows import (
    START,
    a_file,
    a_running_batch,
    after,
    an_order,
    an_outcome,
    slice_progress,
)

LATER = after(10_000)


def expiring(id: str, at: float, tenant: str = "t") -> FileRow:
    return a_file(id, tenant, expires_at=after(at))


async def test_expired_files_are_listed_oldest_first_from_a_position(any_database: Database) -> None:
    files = [expiring("file-3", 3, "a"), expiring("file-1", 1, "b"), expiring("file-2", 1, "b"), a_file()]
    for row in [*files, expiring("file-9", 10_001)]:
        await any_database.files.insert(row)
    table = any_database.retention
    assert await table.expired_files(LATER, SWEEP_START, 2) == [files[1], files[2]]
    place = SweepPosition(at=after(1), tenant="b", id="file-2")
    assert await table.expired_files(LATER, place, 2) == [files[0]]


async def test_a_file_stays_while_a_batch_reads_it_and_a_while_longer(any_database: Database) -> None:
    file, table = expiring("file-1", 1), any_database.retention
    await any_database.files.insert(file)
    await a_running_batch(any_database)
    assert await table.expired_files(LATER, SWEEP_START, 9) == []
    assert not await table.remove_file(file)
    await any_database.batch_ends.finish("t", "batch_1", an_outcome(), after(500))
    assert await table.expired_files(after(499), SWEEP_START, 9) == []
    assert await table.expired_files(after(500), SWEEP_START, 9) == [file]
    assert await table.remove_file(file)


async def test_a_file_is_removed_once_and_only_with_the_object_that_was_seen(
    any_database: Database,
) -> None:
    file = expiring("file-1", 1)
    await any_database.files.insert(file)
    table = any_database.retention
    assert not await table.remove_file(file.model_copy(update={"storage_key": "x/other"}))
    assert [await table.remove_file(file) for _ in range(2)] == [True, False]


async def test_an_ended_batch_is_cleared_once_with_its_progress_reports(any_database: Database) -> None:
    await a_running_batch(any_database)
    await any_database.progress.record([slice_progress()])
    table = any_database.retention
    assert await table.ended_batches(LATER, SWEEP_START, 9) == []
    await any_database.batch_ends.end_without_files("t", "batch_1", BatchStatus.FAILED, [], after(100))
    ended = EndedItem("t", "batch_1", after(100))
    assert await table.ended_batches(after(99), SWEEP_START, 9) == []
    assert await table.ended_batches(after(100), SWEEP_START, 9) == [ended]
    assert await table.ended_batches(LATER, SweepPosition(at=after(100), tenant="t", id="batch_1"), 9) == []
    assert [await table.record_sweep(ended, LATER) for _ in range(2)] == [True, False]
    assert await table.ended_batches(LATER, SWEEP_START, 9) == []


async def test_an_ended_batch_whose_counts_do_not_add_up_is_found(any_database: Database) -> None:
    for id, completed in (("batch_1", 8), ("batch_2", 7)):
        await a_running_batch(any_database, id)
        outcome = an_outcome(completed=completed, output=a_file(f"file-{id}"), error=None)
        await any_database.batch_ends.finish("t", id, outcome, after(100))
    assert [row.order.batch_id for row in await any_database.retention.miscounted()] == ["batch_2"]


async def test_a_batch_row_is_deleted_after_its_objects_and_files(any_database: Database) -> None:
    await a_running_batch(any_database)
    await any_database.batch_ends.finish("t", "batch_1", an_outcome(), after(100))
    table, ended = any_database.retention, EndedItem("t", "batch_1", after(100))
    assert await table.old_batches(LATER, SWEEP_START, 9) == []
    assert not await table.remove_batch(ended)
    await table.record_sweep(ended, LATER)
    assert await table.old_batches(LATER, SWEEP_START, 9) == []
    for id, key in (("file-out", "x/out/1"), ("file-err", "x/err/1")):
        assert await table.remove_file(a_file(id, storage_key=key))
    assert await table.old_batches(LATER, SWEEP_START, 9) == [ended]
    assert [await table.remove_batch(ended) for _ in range(2)] == [True, False]
    assert await any_database.batches.get("t", "batch_1") is None


def an_upload(id: str, at: float) -> UploadRow:
    return UploadRow(
        id=id,
        tenant="t",
        purpose="batch",
        filename="x",
        mime_type="text/jsonl",
        bytes=1,
        created_at=after(0),
        expires_at=after(at),
    )


async def test_an_upload_row_is_deleted_after_its_sweep(any_database: Database) -> None:
    rows = [an_upload("upload_1", 1), an_upload("upload_2", 2)]
    for row in rows:
        await any_database.uploads.insert(row)
    table, first = any_database.retention, EndedItem("t", "upload_1", after(1))
    place = SweepPosition(at=after(1), tenant="t", id="upload_1")
    assert await any_database.uploads.unswept(LATER, 9, after=place) == [rows[1]]
    assert await table.open_uploads("t", ["upload_1", "upload_2", "upload_3"]) == {"upload_1", "upload_2"}
    assert not await table.remove_upload(first)
    await any_database.uploads.record_sweep(rows[0], LATER)
    assert await table.open_uploads("t", ["upload_1", "upload_2"]) == {"upload_2"}
    assert await table.old_uploads(LATER, SWEEP_START, 9) == [first]
    assert [await table.remove_upload(first) for _ in range(2)] == [True, False]


async def test_keys_are_deleted_in_small_steps(any_database: Database) -> None:
    for number in range(5):
        key = IdempotencyClaim(
            tenant="t", operation="o", key=str(number), fingerprint="f", made="{}", created_at=after(number)
        )
        await any_database.idempotency.claim(key, after(-10))
    table = any_database.retention
    assert await table.count_idempotency_keys(after(3)) == 4
    assert [await table.remove_idempotency_keys(after(3), 3) for _ in range(3)] == [3, 1, 0]


async def test_tenants_are_all_owners_of_rows(any_database: Database) -> None:
    await any_database.files.insert(a_file(tenant="b"))
    await any_database.files.insert(a_file("file-2", tenant="b"))
    await any_database.batches.upsert(an_order(tenant="c"))
    await any_database.uploads.insert(an_upload("upload_1", 1))
    assert await any_database.retention.tenants("", 9) == ["b", "c", "t"]
    assert await any_database.retention.tenants("b", 1) == ["c"]


async def test_a_tenant_is_read_with_its_objects_live_batches_and_files_that_do_not_expire(
    any_database: Database,
) -> None:
    now = datetime.now(UTC)
    await any_database.files.insert(a_file("file-1"))
    await any_database.files.insert(expiring("file-2", 1))
    await any_database.files.insert(a_file("file-3", expires_at=now + timedelta(days=9)))
    await any_database.files.insert(a_file("file-4", created_at=now))
    await any_database.files.insert(a_file("file-5", tenant="other"))
    await a_running_batch(any_database)
    table = any_database.retention
    assert await table.storage_keys("t", ["file-2", "file-5", "file-6"]) == {"file-2": "x/file-2"}
    assert await table.live_batches("t") == {"batch_1"}
    assert await table.live_batches("other") == frozenset()
    found = await table.settled_files("t", "", now - timedelta(minutes=1), now, 9)
    assert [row.id for row in found] == ["file-1", "file-3"]
    assert [row.id for row in await table.settled_files("t", "file-1", now, now, 1)] == ["file-3"]


async def test_the_latest_success_of_a_kind_stays(any_database: Database) -> None:
    table = any_database.retention
    assert (await table.successes()).keys() == set(RetentionKind)
    later = datetime.now(UTC) + timedelta(days=1)
    for at in (later, later - timedelta(hours=1)):
        await table.record_success(RetentionKind.FILES, at)
    assert (await table.successes())[RetentionKind.FILES] == later


async def test_a_storage_is_marked_once(any_database: Database) -> None:
    table = any_database.retention
    before = await table.mark()
    assert before.id
    assert before.marked_at is None
    await table.record_mark(after(1))
    await table.record_mark(after(2))
    assert await table.mark() == (before.id, after(1))


async def test_retention_of_a_tenant_does_not_look_at_the_batches_and_files_of_others(
    any_database: Database,
) -> None:
    """The batches and files of two tenants have the same ids, because ids are unique only within a tenant."""
    file, table = expiring("file-1", 1), any_database.retention
    await any_database.files.insert(file)
    await any_database.batches.upsert(an_order(tenant="other", input_file_id=file.id))
    await a_running_batch(any_database)
    output = a_file("file-out", "t", purpose="batch_output")
    await any_database.batch_ends.finish("t", "batch_1", an_outcome(output=output, error=None), after(100))
    await any_database.files.delete("t", "file-out")
    await any_database.files.insert(a_file("file-out", "other"))
    ended = EndedItem("t", "batch_1", after(100))
    assert await table.record_sweep(ended, LATER)
    assert await table.expired_files(LATER, SWEEP_START, 9) == [file]
    assert await table.remove_file(file)
    assert await table.old_batches(LATER, SWEEP_START, 9) == [ended]


ENDS = [
    ("b", "batch_1", 200, BatchStatus.CANCELLED),
    ("a", "batch_2", 300, BatchStatus.EXPIRED),
    ("a", "batch_3", 200, BatchStatus.FAILED),
    ("a", "batch_1", 200, BatchStatus.COMPLETED),
]
LISTED = [
    EndedItem("a", "batch_1", after(200)),
    EndedItem("a", "batch_3", after(200)),
    EndedItem("b", "batch_1", after(200)),
    EndedItem("a", "batch_2", after(300)),
]


async def unswept_batch(
    database: Database, order: BatchOrder, at: datetime, status: BatchStatus = BatchStatus.FAILED
) -> None:
    """Create a batch that ended without files at the time `at`."""
    await database.batches.upsert(order)
    outcome = an_outcome(status, output=None, error=None)
    assert await database.batch_ends.finish(order.tenant, order.batch_id, outcome, at)


async def swept_batch(
    database: Database, order: BatchOrder, at: datetime, status: BatchStatus = BatchStatus.FAILED
) -> None:
    """Create a batch that ended without files at the time `at`, and whose objects are deleted."""
    await unswept_batch(database, order, at, status)
    assert await database.retention.record_sweep(EndedItem(order.tenant, order.batch_id, at), LATER)


async def test_old_batches_are_listed_by_the_time_of_their_end_from_a_position(
    any_database: Database,
) -> None:
    table, place = any_database.retention, SweepPosition(at=after(200), tenant="a", id="batch_3")
    for tenant, id, seconds, status in ENDS:
        await swept_batch(any_database, an_order(id, tenant), after(seconds), status)
    await unswept_batch(any_database, an_order("batch_9", "a"), after(200))
    await any_database.files.insert(a_file(tenant="a"))  # it belongs to no batch
    assert await table.old_batches(after(300), SWEEP_START, 9) == LISTED
    assert await table.old_batches(after(299), SWEEP_START, 9) == LISTED[:3]
    for limit in (1, 2):
        assert await table.old_batches(after(300), SWEEP_START, limit) == LISTED[:limit]
    assert await table.old_batches(after(300), place, 9) == LISTED[2:]


async def test_rolling_batches_are_listed_once_and_two_days_after_their_end_at_the_latest(
    any_database: Database,
) -> None:
    table, place = any_database.retention, SweepPosition(at=after(200), tenant="a", id="batch_3")
    for tenant, id, seconds, status in ENDS:
        await swept_batch(any_database, a_rolling_order(id, tenant), after(seconds), status)
    await unswept_batch(any_database, a_rolling_order("batch_9", "a"), after(200))
    two_days_ago = datetime.now(UTC) - timedelta(days=2)
    await swept_batch(any_database, a_rolling_order("batch_8"), two_days_ago + timedelta(minutes=1))
    for before in (after(100), after(200), after(300)):
        assert await table.old_batches(before, SWEEP_START, 9) == LISTED
    for before, limit in ((after(100), 1), (after(100), 2), (after(200), 3)):
        assert await table.old_batches(before, SWEEP_START, limit) == LISTED[:limit]
    assert await table.old_batches(after(100), place, 9) == LISTED[2:]
    ended = EndedItem("t", "batch_9", two_days_ago - timedelta(minutes=1))
    await swept_batch(any_database, a_rolling_order("batch_9"), ended.ended_at)
    assert await table.old_batches(after(100), SWEEP_START, 9) == [*LISTED, ended]


async def test_a_rolling_batch_is_old_only_after_its_own_objects_and_files_are_deleted(
    any_database: Database,
) -> None:
    table = any_database.retention
    files = [a_file("file-out"), a_file("file-err")]
    for id, output, error in (("batch_1", files[0], None), ("batch_2", None, files[1])):
        await any_database.batches.upsert(a_rolling_order(id))
        outcome = an_outcome(output=output, error=error)
        assert await any_database.batch_ends.finish("t", id, outcome, after(100))
    await any_database.files.insert(a_file("file-out", "other"))  # ids are unique only within a tenant
    ended = [EndedItem("t", id, after(100)) for id in ("batch_1", "batch_2")]
    assert await table.record_sweep(ended[0], LATER)
    assert await table.old_batches(START, SWEEP_START, 9) == []
    assert await table.remove_file(files[0])
    assert await table.old_batches(START, SWEEP_START, 9) == ended[:1]
    assert await table.record_sweep(ended[1], LATER)
    assert await table.old_batches(START, SWEEP_START, 9) == ended[:1]
    assert await table.remove_file(files[1])
    assert await table.old_batches(START, SWEEP_START, 9) == ended
