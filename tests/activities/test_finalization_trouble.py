"""Finalization where something is missing, damaged, away, or done twice."""

import pytest
from temporalio.exceptions import ApplicationError

from batchwright.contracts.errors import Failure, LineCode
from batchwright.contracts.finalization import FinalizeRequest, FinalizeResult
from batchwright.contracts.openai import BatchStatus
from batchwright.database.errors import DatabaseUnavailable
from batchwright.rules import keys
from batchwright.rules.segments import Kind, Record
from batchwright.storage.base import StorageUnavailable
from tests.activities.settled_batch import (
    BATCH_ID,
    CREATED,
    INPUT_KEY,
    TENANT,
    SettledBatch,
    a_batch,
    names,
)


async def test_without_its_input_the_shards_tell_the_custom_ids() -> None:
    batch = await a_batch(lines=5)
    await batch.put([batch.success(3)])
    await batch.storage.delete(INPUT_KEY)
    result = await batch.finalize(batch.request(BatchStatus.EXPIRED, LineCode.BATCH_EXPIRED))
    assert result == FinalizeResult(status=BatchStatus.EXPIRED, completed=1, failed=4)
    assert await batch.ids("error") == names([0, 1, 2, 4])


async def test_without_input_and_shards_it_fails_for_good() -> None:
    batch = await a_batch(lines=2)
    await batch.storage.delete(INPUT_KEY)
    await batch.storage.delete(keys.shard(batch.prefix, "b"))
    await assert_fails(batch, batch.request(), Failure.INPUT_VANISHED, "b.jsonl", retried=False)


async def test_a_damaged_segment_is_named() -> None:
    batch = await a_batch(lines=1)
    key = await batch.put([batch.success(0)])
    batch.memory.objects[key] = batch.memory.objects[key].replace(b"answer", b"anzwer")
    await assert_fails(batch, batch.request(), Failure.RESULTS_DAMAGED, key, retried=False)


async def test_a_plan_that_lacks_lines_is_named() -> None:
    batch = await a_batch(lines=4)
    key = keys.plan(batch.prefix, "a")
    batch.memory.objects[key] = batch.memory.objects[key][:16]
    await assert_fails(batch, batch.request(), Failure.PLAN_DAMAGED, key, retried=False)


async def test_a_result_of_no_line_is_told_with_its_numbers() -> None:
    batch = await a_batch(lines=2)
    await batch.put([batch.success(0), batch.success(1), Record(Kind.SETTLED, 7, b"{}")])
    await assert_fails(
        batch, batch.request(), Failure.RESULTS_DAMAGED, "has 2 lines; 3 have a result", retried=False
    )


async def test_a_result_that_no_plan_knows_is_told_with_its_numbers() -> None:
    batch = await a_batch(lines=2)
    await batch.put([batch.success(0), batch.success(1)])
    request = batch.request()
    request = request.model_copy(update={"models": request.models[:1]})
    await assert_fails(batch, request, Failure.RESULTS_DAMAGED, "(1 of the plans'", retried=False)


async def test_storage_trouble_is_retried_and_the_row_stays_live() -> None:
    batch = await a_batch(lines=1)
    batch.memory.failing = StorageUnavailable("no disk")
    await assert_fails(batch, batch.request(), Failure.STORAGE_UNAVAILABLE, "no disk", retried=True)
    row = await batch.database.batches.get(TENANT, BATCH_ID)
    assert row is not None
    assert row.status is BatchStatus.FINALIZING


async def test_database_trouble_is_retried() -> None:
    batch = await a_batch(lines=1)
    batch.database.rows.failing = DatabaseUnavailable("no server")
    await assert_fails(batch, batch.request(), Failure.DATABASE_UNAVAILABLE, "no server", retried=True)


async def test_a_retry_after_the_end_answers_as_the_first_attempt() -> None:
    batch = await a_batch(lines=2)
    await batch.put([batch.success(0), batch.failure(1)])
    first = await batch.finalize()
    before = dict(batch.memory.objects)
    assert await batch.finalize() == first
    assert batch.memory.objects == before


async def test_an_attempt_that_died_before_the_end_changes_nothing() -> None:
    once, twice = await a_batch(lines=3), await a_batch(lines=3)
    for batch in (once, twice):
        await batch.put([batch.success(2), batch.success(0)])
    request = once.request(BatchStatus.EXPIRED, LineCode.BATCH_EXPIRED)
    twice.memory.events[INPUT_KEY] = lambda: fail(twice, DatabaseUnavailable("died"))
    await assert_fails(twice, request, Failure.DATABASE_UNAVAILABLE, "died", retried=True)
    await fail(twice, None)
    assert await twice.finalize(request) == await once.finalize(request)
    for kind in ("output", "error"):
        assert await twice.content(kind) == await once.content(kind)
    assert len(twice.memory.objects) == len(once.memory.objects)


async def test_an_attempt_that_comes_late_leaves_the_row_and_none_of_its_objects() -> None:
    batch = await a_batch(lines=1)
    segment = await batch.put([batch.success(0)])
    batch.memory.events[segment] = lambda: win(batch)
    assert await batch.finalize() == FinalizeResult(status=BatchStatus.CANCELLED)
    assert set(batch.memory.objects) == {INPUT_KEY}


async def test_an_attempt_that_misses_what_the_winner_deleted_answers_as_the_winner_did() -> None:
    batch = await a_batch(lines=1)
    batch.memory.events[keys.plan(batch.prefix, "a")] = lambda: win(batch)
    assert await batch.finalize() == FinalizeResult(status=BatchStatus.CANCELLED)


async def test_a_segment_compacted_while_it_is_read_is_found_again() -> None:
    batch = await a_batch(lines=2)
    old = await batch.put([batch.success(0)], sequence=0)
    await batch.put([batch.success(1)], sequence=1)

    async def compact() -> None:
        await batch.put([batch.success(0)], sequence=9)
        await batch.storage.delete(old)

    batch.memory.events[old] = compact
    assert await batch.finalize() == FinalizeResult(status=BatchStatus.COMPLETED, completed=2)


async def assert_fails(
    batch: SettledBatch, request: FinalizeRequest, kind: Failure, text: str, *, retried: bool
) -> None:
    with pytest.raises(ApplicationError) as caught:
        await batch.finalize(request)
    assert (caught.value.type, caught.value.non_retryable) == (kind, not retried)
    assert text in caught.value.message


async def fail(batch: SettledBatch, error: Exception | None) -> None:
    batch.database.rows.failing = error


async def win(batch: SettledBatch) -> None:
    """Another attempt ends the batch and cleans up behind it."""
    await batch.database.batches.end(TENANT, BATCH_ID, BatchStatus.CANCELLED, [], CREATED)
    await batch.storage.delete_prefix(keys.batch_root(TENANT, BATCH_ID))
