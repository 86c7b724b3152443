"""Reruns of batches (retries and resumes), in memory and in PostgreSQL."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from batchwright.contracts.temporal_payloads.batch import ModelCounts, RerunKind, SourceBatch
from batchwright.contracts.temporal_payloads.retention import SweepPosition
from batchwright.contracts.terms import BatchStatus, Quota, Usage
from batchwright.database.database import Database
from batchwright.database.errors import QuotaExhausted, ResultsGone, UnknownBatch
from batchwright.database.tables.operations.retention import EndedItem
from batchwright.database.tables.tenants.admissions import Admission
from tests.integration.database.admission_rows import admit_batch, admit_bytes
from tests.integration.database.rows import START, a_file, after, an_order, slice_progress

RETRY = SourceBatch(batch_id="batch_1", kind=RerunKind.RETRY)
RESUME = SourceBatch(batch_id="batch_1", kind=RerunKind.RESUME)
LATER = datetime.now(UTC) + timedelta(days=1)


async def test_the_first_rerun_of_a_kind_is_kept(any_database: Database) -> None:
    await any_database.batches.upsert(an_order())
    first, second = (an_order(id, origin=RETRY) for id in ("batch_2", "batch_3"))
    held = [
        await any_database.reruns.claim(first, RETRY, a_file("file-2")),
        await any_database.reruns.claim(second, RETRY, a_file("file-3")),
        await any_database.reruns.find("t", RETRY),
    ]
    assert held == [first, first, first]
    assert await any_database.files.get("t", "file-2") is not None
    assert await any_database.files.get("t", "file-3") is None


async def test_a_rerun_and_its_file_count_unless_the_batch_has_a_rerun(any_database: Database) -> None:
    await any_database.batches.upsert(an_order())

    def admissions(number: int) -> list[Admission]:
        return [
            Admission("t", f"batch_{number}", Quota.LIVE_BATCHES, 1, 3),
            Admission("t", f"file-{number}", Quota.STORED_BYTES, 60, 100),
        ]

    async def claim(number: int, origin: SourceBatch) -> str:
        order, file = an_order(f"batch_{number}", origin=origin), a_file(f"file-{number}", bytes=60)
        return (await any_database.reruns.claim(order, origin, file, admissions=admissions(number))).batch_id

    assert [await claim(2, RETRY), await claim(3, RETRY)] == ["batch_2", "batch_2"]
    with pytest.raises(QuotaExhausted):
        await claim(4, RESUME)
    assert await any_database.reruns.find("t", RESUME) is None
    assert await admit_bytes(any_database, "file-5", 40, 100)
    assert await admit_batch(any_database, "batch_5", 3)  # besides batch_1 and batch_2
    assert not await admit_batch(any_database, "batch_6", 3)


async def test_of_concurrent_reruns_one_wins(any_database: Database) -> None:
    await any_database.batches.upsert(an_order())
    orders = [an_order(f"batch_{n}", origin=RESUME) for n in range(2, 6)]
    held = await asyncio.gather(*(any_database.reruns.claim(order, RESUME) for order in orders))
    assert len({order.batch_id for order in held}) == 1


async def test_a_batch_has_one_rerun_of_each_kind_and_tenants_share_none(any_database: Database) -> None:
    await any_database.batches.upsert(an_order())
    await any_database.reruns.claim(an_order("batch_2"), RETRY)
    assert await any_database.reruns.find("t", RESUME) is None
    assert await any_database.reruns.find("u", RETRY) is None
    with pytest.raises(UnknownBatch):
        await any_database.reruns.claim(an_order("batch_3", "u"), RETRY)


async def test_a_batch_row_has_its_source_batch(any_database: Database) -> None:
    order = an_order(origin=SourceBatch(batch_id="batch_0", kind=RerunKind.RESUME))
    row = await any_database.batches.upsert(order)
    assert row.order == order


async def test_results_reused_by_ingestion_count_from_the_beginning(any_database: Database) -> None:
    await any_database.batches.upsert(an_order())
    models = [
        ModelCounts(model="a", lines=5, completed=2, failed=1),
        ModelCounts(model="b", lines=1, failed=1),
    ]
    await any_database.batches.start(
        "t", "batch_1", total=6, models=models, at=after(1), unserved=2, completed=2
    )
    await any_database.progress.record([slice_progress(usage=Usage(input_tokens=1))])
    row = await any_database.batches.get("t", "batch_1")
    assert row is not None
    [live] = await any_database.fleet.live()
    assert (row.completed, row.failed) == (3, 2)
    assert [(c.model, c.completed, c.failed) for c in row.models] == [("a", 3, 1), ("b", 0, 1)]
    assert (live.lines, live.settled) == (2, 1)
    assert await any_database.fleet.lines_left() == {"a": 1}


async def test_results_kept_for_a_rerun_are_not_deleted_by_retention(any_database: Database) -> None:
    await any_database.batches.upsert(an_order())
    await any_database.batch_ends.end_without_files("t", "batch_1", BatchStatus.FAILED, [], after(1), LATER)
    row = await any_database.batches.get("t", "batch_1")
    assert row is not None
    assert row.results_kept_until == LATER
    assert await any_database.retention.ended_batches(LATER, SweepPosition(), 10) == []
    assert await any_database.retention.live_batches("t") == {"batch_1"}


async def test_a_resumption_keeps_results_for_as_long_as_it_may_take(any_database: Database) -> None:
    await any_database.batches.upsert(an_order())
    await any_database.batch_ends.end_without_files("t", "batch_1", BatchStatus.FAILED, [], after(1), LATER)
    order = an_order("batch_2", deadline=LATER + timedelta(days=3))
    await any_database.reruns.claim(order, RESUME)
    row = await any_database.batches.get("t", "batch_1")
    assert row is not None
    assert row.results_kept_until == order.deadline


async def test_results_that_are_no_longer_kept_cannot_be_claimed(any_database: Database) -> None:
    await any_database.batches.upsert(an_order())
    past = datetime.now(UTC).replace(microsecond=0) - timedelta(seconds=1)
    await any_database.batch_ends.end_without_files("t", "batch_1", BatchStatus.FAILED, [], after(1), past)
    with pytest.raises(ResultsGone):
        await any_database.reruns.claim(an_order("batch_2", deadline=LATER), RESUME)
    row = await any_database.batches.get("t", "batch_1")
    assert row is not None
    assert row.results_kept_until == past
    assert await any_database.reruns.find("t", RESUME) is None


async def test_a_resumption_that_starts_later_keeps_the_results_for_longer(any_database: Database) -> None:
    await any_database.batches.upsert(an_order())
    await any_database.batch_ends.end_without_files("t", "batch_1", BatchStatus.FAILED, [], after(1), LATER)
    for days in (3, 2):
        later = an_order("batch_2", deadline=LATER + timedelta(days=days), origin=RESUME)
        await any_database.reruns.keep_results(later)
    row = await any_database.batches.get("t", "batch_1")
    assert row is not None
    assert row.results_kept_until == LATER + timedelta(days=3)


async def test_results_that_are_gone_cannot_be_kept_for_longer(any_database: Database) -> None:
    past = datetime.now(UTC).replace(microsecond=0) - timedelta(seconds=1)
    order = an_order("batch_2", deadline=LATER, origin=RESUME)
    with pytest.raises(ResultsGone):
        await any_database.reruns.keep_results(order)
    await any_database.batches.upsert(an_order())
    await any_database.batch_ends.end_without_files("t", "batch_1", BatchStatus.FAILED, [], after(1), past)
    with pytest.raises(ResultsGone):
        await any_database.reruns.keep_results(order)
    await any_database.reruns.keep_results(an_order("batch_2", deadline=LATER, origin=RETRY))
    row = await any_database.batches.get("t", "batch_1")
    assert row is not None
    assert row.results_kept_until == past


async def test_a_batch_with_files_keeps_its_results_in_them(any_database: Database) -> None:
    await any_database.batches.upsert(an_order())
    await any_database.reruns.keep_results(an_order("batch_2", deadline=LATER, origin=RESUME))
    row = await any_database.batches.get("t", "batch_1")
    assert row is not None
    assert row.results_kept_until is None


async def test_a_rerun_is_deleted_with_the_batch_that_was_created(any_database: Database) -> None:
    await any_database.batches.upsert(an_order())
    await any_database.batches.upsert(an_order("batch_2", origin=RESUME))
    await any_database.reruns.claim(an_order("batch_2"), RESUME)
    await any_database.batch_ends.end_without_files("t", "batch_2", BatchStatus.FAILED, [], after(1))
    gone = EndedItem("t", "batch_2", after(1))
    await any_database.retention.record_sweep(gone, START)
    await any_database.retention.remove_batch(gone)
    assert await any_database.reruns.find("t", RESUME) is None
