"""Deletion of batches by their tenants.

The fixture `any_database` runs each test in memory and on PostgreSQL.
"""

from datetime import UTC, datetime, timedelta

import pytest

from batchwright.contracts.temporal_payloads.batch import BatchOrder, RerunKind, SourceBatch
from batchwright.contracts.terms import BatchStatus
from batchwright.database.database import Database
from batchwright.database.errors import ResultsGone, ResultsInUse, UnknownBatch
from batchwright.rules.results.dead_letters import DeadLetter
from tests.integration.database.admission_rows import admit_batch
from tests.integration.database.rows import a_file, a_running_batch, after, an_order, an_outcome

LETTER = DeadLetter(
    id="batch_req_1",
    offset=0,
    custom_id="a",
    model="m",
    attempts=5,
    failed_at=after(1),
    status=500,
    message="it failed",
)


async def an_ended_batch(database: Database, id: str = "batch_1") -> None:
    await a_running_batch(database, id)
    await database.batch_ends.finish("t", id, an_outcome(dead_letters=[LETTER]), after(100))


def a_rerun(kind: RerunKind) -> BatchOrder:
    return an_order("batch_2", origin=SourceBatch(batch_id="batch_1", kind=kind))


async def claim(database: Database, kind: RerunKind) -> BatchOrder:
    """Record that `batch_2` retries or resumes `batch_1`. Return the argument of the workflow of
    `batch_2`.
    """
    order = a_rerun(kind)
    assert order.origin is not None
    return await database.reruns.claim(order, order.origin)


async def names_of_files(database: Database, tenant: str = "t") -> list[str]:
    rows, _ = await database.files.page(tenant, purpose=None, limit=9, ascending=True, after=None)
    return [row.id for row in rows]


async def test_a_deletion_hides_the_files_first_and_then_removes_the_batch(any_database: Database) -> None:
    await any_database.files.insert(a_file())
    await an_ended_batch(any_database)
    deletions = any_database.batch_deletions
    await deletions.begin("t", "batch_1", keep_files=False)
    assert await names_of_files(any_database) == ["file-1"]
    assert await any_database.batches.get("t", "batch_1") is not None
    assert await any_database.dead_letters.get("batch_req_1") is not None
    assert not await deletions.is_deleted("t", "batch_1")
    assert [await deletions.remove("t", "batch_1", after(200)) for _ in range(2)] == [True, False]
    assert await any_database.batches.get("t", "batch_1") is None
    assert await any_database.dead_letters.get("batch_req_1") is None
    assert await deletions.is_deleted("t", "batch_1")


async def test_the_files_of_the_tenants_other_batches_stay(any_database: Database) -> None:
    await an_ended_batch(any_database)
    await a_running_batch(any_database, "batch_2")
    files = [a_file(f"file-{name}", purpose="batch_output") for name in ("out-2", "err-2")]
    await any_database.batch_ends.finish(
        "t", "batch_2", an_outcome(output=files[0], error=files[1]), after(100)
    )
    await any_database.batch_deletions.begin("t", "batch_1", keep_files=False)
    assert sorted(await names_of_files(any_database)) == ["file-err-2", "file-out-2"]


async def test_files_can_be_kept(any_database: Database) -> None:
    await an_ended_batch(any_database)
    await any_database.batch_deletions.begin("t", "batch_1", keep_files=True)
    assert await any_database.batch_deletions.remove("t", "batch_1", after(200))
    assert sorted(await names_of_files(any_database)) == ["file-err", "file-out"]


async def test_a_deleted_batch_is_never_inserted_again(any_database: Database) -> None:
    await an_ended_batch(any_database)
    await any_database.batch_deletions.remove("t", "batch_1", after(200))
    with pytest.raises(UnknownBatch):
        await any_database.batches.upsert(an_order())
    assert await any_database.batches.get("t", "batch_1") is None


async def test_a_live_batch_and_one_whose_files_are_pending_are_not_removed(any_database: Database) -> None:
    await a_running_batch(any_database)
    remove = any_database.batch_deletions.remove
    assert not await remove("t", "batch_1", after(200))
    await any_database.batch_ends.end_without_files(
        "t", "batch_1", BatchStatus.EXPIRED, [], after(100), files_until=after(1000)
    )
    assert not await remove("t", "batch_1", after(200))
    await any_database.batch_ends.abandon_files("t", "batch_1", [])
    assert await remove("t", "batch_1", after(200))


async def test_results_that_a_resumption_still_reads_stay(any_database: Database) -> None:
    await an_ended_batch(any_database)
    await any_database.batches.upsert(await claim(any_database, RerunKind.RESUME))
    with pytest.raises(ResultsInUse) as refused:
        await any_database.batch_deletions.begin("t", "batch_1", keep_files=False)
    assert refused.value.reader_id == "batch_2"
    assert "file-out" in await names_of_files(any_database)
    await any_database.batches.start("t", "batch_2", total=1, models=[], at=after(110))
    await any_database.batch_deletions.begin("t", "batch_1", keep_files=False)
    assert await names_of_files(any_database) == []


async def test_only_a_resumption_of_the_same_batch_prevents_a_deletion(any_database: Database) -> None:
    """Two other batches are being validated: one resumes another batch, the other one belongs to another
    tenant.
    """
    await an_ended_batch(any_database)
    await any_database.batches.upsert(await claim(any_database, RerunKind.RETRY))
    await a_running_batch(any_database, "batch_3")
    for tenant, origin in (("t", "batch_3"), ("u", "batch_1")):
        await any_database.batches.upsert(an_order(origin, tenant))
        source = SourceBatch(batch_id=origin, kind=RerunKind.RESUME)
        order = an_order("batch_4", tenant, origin=source)
        await any_database.batches.upsert(await any_database.reruns.claim(order, source))
    resumption = await claim(any_database, RerunKind.RESUME)  # its own batch is not started yet
    assert resumption.batch_id == "batch_2"
    await any_database.batches.start("t", "batch_2", total=1, models=[], at=after(110))
    await any_database.batch_deletions.begin("t", "batch_1", keep_files=False)
    assert await any_database.batch_deletions.remove("t", "batch_1", after(200))


async def test_kept_results_cannot_be_claimed_after_a_deletion_has_begun(any_database: Database) -> None:
    await a_running_batch(any_database)
    later = datetime.now(UTC) + timedelta(days=1)
    await any_database.batch_ends.end_without_files("t", "batch_1", BatchStatus.FAILED, [], after(100), later)
    await any_database.batch_deletions.begin("t", "batch_1", keep_files=True)
    with pytest.raises(ResultsGone):
        await claim(any_database, RerunKind.RESUME)
    assert await any_database.batch_deletions.remove("t", "batch_1", after(200))


@pytest.mark.parametrize("keep_files", [True, False])
async def test_a_batch_with_files_cannot_be_resumed_after_a_deletion_has_begun(
    any_database: Database, keep_files: bool
) -> None:
    await an_ended_batch(any_database)
    await any_database.batch_deletions.begin("t", "batch_1", keep_files=keep_files)
    with pytest.raises(ResultsGone):
        await claim(any_database, RerunKind.RESUME)
    assert await any_database.batch_deletions.remove("t", "batch_1", after(200))


async def test_a_claimed_resumption_cannot_start_after_a_deletion_has_begun(any_database: Database) -> None:
    await an_ended_batch(any_database)
    order = await claim(any_database, RerunKind.RESUME)
    await any_database.batch_deletions.begin("t", "batch_1", keep_files=True)
    with pytest.raises(ResultsGone):
        await any_database.reruns.keep_results(order)


async def test_a_claimed_resumption_is_still_found_after_a_deletion_has_begun(any_database: Database) -> None:
    await a_running_batch(any_database)
    later = datetime.now(UTC) + timedelta(days=1)
    await any_database.batch_ends.end_without_files("t", "batch_1", BatchStatus.FAILED, [], after(100), later)
    first = await claim(any_database, RerunKind.RESUME)
    await any_database.batch_deletions.begin("t", "batch_1", keep_files=True)
    assert await claim(any_database, RerunKind.RESUME) == first


async def test_a_retry_has_an_input_of_its_own_and_keeps_nothing(any_database: Database) -> None:
    await an_ended_batch(any_database)
    await any_database.batches.upsert(await claim(any_database, RerunKind.RETRY))
    await any_database.batch_deletions.begin("t", "batch_1", keep_files=False)
    assert await any_database.batch_deletions.remove("t", "batch_1", after(200))


async def test_after_its_rerun_was_deleted_a_batch_can_be_rerun_again(any_database: Database) -> None:
    await an_ended_batch(any_database)
    order = await claim(any_database, RerunKind.RESUME)
    await any_database.batches.upsert(order)
    await any_database.batch_ends.end_without_files("t", "batch_2", BatchStatus.FAILED, [], after(120))
    assert await any_database.batch_deletions.remove("t", "batch_2", after(200))
    assert order.origin is not None
    assert await any_database.reruns.find("t", order.origin) is None


async def test_a_tenant_deletes_nothing_of_another(any_database: Database) -> None:
    await an_ended_batch(any_database)
    await any_database.files.insert(a_file("file-out", "u", purpose="batch_output"))
    await any_database.batch_deletions.begin("u", "batch_1", keep_files=False)
    assert not await any_database.batch_deletions.remove("u", "batch_1", after(200))
    assert not await any_database.batch_deletions.is_deleted("u", "batch_1")
    await any_database.batch_deletions.begin("t", "batch_1", keep_files=False)
    assert await names_of_files(any_database, "u") == ["file-out"]


async def test_old_deletions_are_forgotten(any_database: Database) -> None:
    for id in ("batch_1", "batch_2"):
        await a_running_batch(any_database, id)
        await any_database.batch_ends.finish("t", id, an_outcome(output=None, error=None), after(100))
    deletions = any_database.batch_deletions
    await deletions.remove("t", "batch_1", after(200))
    await deletions.remove("t", "batch_2", after(200) + timedelta(seconds=1))
    await deletions.forget(after(200))
    assert [await deletions.is_deleted("t", id) for id in ("batch_1", "batch_2")] == [False, True]


async def test_a_deleted_batch_does_not_count_as_live_again(any_database: Database) -> None:
    assert await admit_batch(any_database, "batch_1", 1)
    await an_ended_batch(any_database)
    await any_database.batch_deletions.remove("t", "batch_1", after(101))
    assert await admit_batch(any_database, "batch_2", 1)
