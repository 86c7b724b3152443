"""Admissions; `any_database` runs the tests on each database."""

import asyncio

from batchwright.contracts.terms import BatchStatus
from batchwright.database.database import Database
from tests.integration.database.admission_rows import admit_batch, admit_bytes
from tests.integration.database.rows import a_file, after, an_order


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
