"""The table of admissions: batches and bytes that are admitted within a quota.

The fixture `any_database` runs each test in memory and on PostgreSQL.
"""

import asyncio
from datetime import UTC, datetime

from batchwright.contracts.terms import BatchStatus
from batchwright.database.database import Database
from batchwright.database.records import PartRow
from tests.integration.database.admission_rows import admit_batch, admit_bytes
from tests.integration.database.call_rows import GROUP, a_call, a_rolling_order
from tests.integration.database.rows import a_file, a_running_batch, after, an_order, an_upload

NEVER = datetime(2999, 1, 1, tzinfo=UTC)


async def test_concurrent_admissions_do_not_exceed_the_limit_of_live_batches(any_database: Database) -> None:
    await any_database.batches.upsert(an_order("batch_0", "t"))
    admitted = await asyncio.gather(*(admit_batch(any_database, f"batch_{n}", 3) for n in range(1, 9)))
    assert sum(admitted) == 2
    assert await admit_batch(any_database, "batch_1", 3, "another")


async def test_an_admitted_batch_counts_once_with_its_row_and_not_after_its_release(
    any_database: Database,
) -> None:
    assert await admit_batch(any_database, "batch_1", 2)
    assert await admit_batch(any_database, "batch_1", 2)
    await any_database.batches.upsert(an_order("batch_1", "t"))
    assert await admit_batch(any_database, "batch_2", 2)
    assert not await admit_batch(any_database, "batch_3", 2)
    await any_database.admissions.release("t", "batch_2")
    await any_database.admissions.release("t", "batch_2")
    assert await admit_batch(any_database, "batch_3", 2)
    await any_database.batch_ends.end_without_files("t", "batch_1", BatchStatus.CANCELLED, [], after(1))
    assert await admit_batch(any_database, "batch_4", 2)


async def test_concurrent_admissions_do_not_exceed_the_limit_of_stored_bytes(
    any_database: Database,
) -> None:
    await any_database.files.insert(a_file("file-0", bytes=30))
    admitted = await asyncio.gather(*(admit_bytes(any_database, f"file-{n}", 30, 100) for n in range(1, 9)))
    assert sum(admitted) == 2
    assert await admit_bytes(any_database, "file-9", 10, 100)
    assert await admit_bytes(any_database, "file-1", 100, 100, "another")


async def test_admitted_bytes_count_once_with_their_row_and_not_after_their_release(
    any_database: Database,
) -> None:
    assert await admit_bytes(any_database, "file-1", 60, 100)
    await any_database.files.insert(a_file("file-1", bytes=60))
    assert await admit_bytes(any_database, "file-1", 60, 100)
    assert not await admit_bytes(any_database, "file-2", 41, 100)
    assert await admit_bytes(any_database, "file-2", 40, 100)
    await any_database.admissions.release("t", "file-2")
    assert await admit_bytes(any_database, "file-3", 40, 100)
    assert await any_database.quotas.stored("t") == 60


async def test_each_live_status_counts_and_a_rolling_or_ended_batch_does_not(any_database: Database) -> None:
    await any_database.batches.upsert(an_order("batch_validating"))
    await a_running_batch(any_database, "batch_running")
    await a_running_batch(any_database, "batch_finalizing")
    await any_database.batches.start_finalizing("t", "batch_finalizing", after(11))
    await any_database.batches.upsert(a_rolling_order("batch_rolling"))
    await a_running_batch(any_database, "batch_ended")
    await any_database.batch_ends.end_without_files("t", "batch_ended", BatchStatus.FAILED, [], after(12))
    assert not await admit_batch(any_database, "batch_new", 3)
    assert await admit_batch(any_database, "batch_new", 4)


async def test_batches_and_admissions_of_another_tenant_do_not_count(any_database: Database) -> None:
    await any_database.batches.upsert(an_order("batch_0", "other"))
    for tenant, limit in (("other", 2), ("t", 1)):
        assert await admit_batch(any_database, "batch_1", limit, tenant)
        assert not await admit_batch(any_database, "batch_2", limit, tenant)
    await any_database.admissions.release("t", "batch_1")
    assert await admit_batch(any_database, "batch_2", 1, "t")
    assert not await admit_batch(any_database, "batch_2", 2, "other")
    await any_database.batches.upsert(an_order("batch_2", "other"))  # the row of another tenant's batch
    assert not await admit_batch(any_database, "batch_3", 1, "t")


async def test_admissions_count_only_towards_their_own_quota(any_database: Database) -> None:
    assert await admit_bytes(any_database, "file-1", 5, 9)
    assert await admit_batch(any_database, "batch_1", 1)
    assert await admit_bytes(any_database, "file-2", 4, 9)
    assert not await admit_bytes(any_database, "file-3", 1, 9)


async def test_bytes_of_uploads_attempts_and_calls_count_while_they_are_stored(
    any_database: Database,
) -> None:
    announced = an_upload("upload_1", bytes=10, expires_at=NEVER)
    await any_database.uploads.insert(announced)
    await any_database.uploads.insert(an_upload("upload_expired", bytes=1000))
    await any_database.uploads.insert(an_upload("upload_cancelled", bytes=1000, expires_at=NEVER))
    await any_database.uploads.cancel("t", "upload_cancelled", after(1))
    await a_running_batch(any_database)
    await any_database.batches.add_attempt("t", "batch_1", "prefix", 20)
    await any_database.files.insert(a_file(bytes=30))
    assert await admit_bytes(any_database, "file-new", 40, 100)
    assert not await admit_bytes(any_database, "file-new", 41, 100)
    assert await admit_bytes(any_database, "upload_1", 10, 100)  # the admission of an upload that has its row
    assert not await admit_bytes(any_database, "upload_2", 1, 100)
    part = PartRow(
        id="part_1", tenant="t", upload_id="upload_1", bytes=15, storage_key="x", created_at=after(0)
    )
    await any_database.uploads.add_part(part, at=after(1), max_bytes=100, max_parts=3)
    await any_database.admissions.release("t", "file-new")
    assert await admit_bytes(any_database, "file-new", 35, 100)  # an upload counts with more than announced
    assert not await admit_bytes(any_database, "file-new", 36, 100)


async def test_stored_bytes_of_another_tenant_do_not_count(any_database: Database) -> None:
    await any_database.uploads.insert(an_upload("upload_1", "other", bytes=1000, expires_at=NEVER))
    await any_database.batches.upsert(an_order("batch_1", "other"))
    await any_database.batches.add_attempt("other", "batch_1", "prefix", 1000)
    await any_database.files.insert(a_file("file-1", "other", bytes=1000))
    await any_database.calls.open(GROUP, a_rolling_order("batch_2", "other"), max_batches=9)
    await any_database.calls.insert(a_call(tenant="other"))
    assert await admit_bytes(any_database, "file-2", 1000, 9000, "other")
    assert await admit_bytes(any_database, "file-1", 9, 9)
    assert not await admit_bytes(any_database, "file-2", 1, 9)  # the other has such a file
    await any_database.admissions.release("t", "file-1")
    assert await admit_bytes(any_database, "upload_1", 9, 9)
    assert not await admit_bytes(any_database, "file-2", 1, 9)
