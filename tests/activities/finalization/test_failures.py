"""Finalization when something is missing, damaged or unavailable, or when two attempts run at
the same time.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest
from temporalio.exceptions import ApplicationError

from batchwright.contracts.errors import Failure, LineCode
from batchwright.contracts.temporal_payloads.finalization import FinalizeRequest, FinalizeResult
from batchwright.contracts.terms import BatchStatus
from batchwright.database.errors import DatabaseUnavailable
from batchwright.rules.results.segment_format import RecordKind, SegmentRecord
from batchwright.rules.stored_objects import object_keys
from batchwright.storage.base import StorageUnavailable
from tests.activities.finalization.settled_batch import (
    BATCH_ID,
    CREATED,
    INPUT_KEY,
    TENANT,
    SettledBatch,
    a_batch,
    names,
)
from tests.fakes.storage import MemoryWriter


async def test_without_its_input_custom_ids_are_read_from_the_shards() -> None:
    batch = await a_batch(lines=5)
    await batch.put([batch.success(3)])
    await batch.storage.delete(INPUT_KEY)
    result = await batch.finalize(batch.request(BatchStatus.EXPIRED, LineCode.BATCH_EXPIRED))
    assert result == FinalizeResult(
        status=BatchStatus.EXPIRED, completed=1, failed=4, failed_by_code={"batch_expired": 4}
    )
    assert await batch.ids("error") == names([0, 1, 2, 4])


async def test_without_input_and_shards_finalization_fails_permanently() -> None:
    batch = await a_batch(lines=2)
    await batch.storage.delete(INPUT_KEY)
    await batch.storage.delete(object_keys.shard(batch.prefix, "b"))
    await assert_fails(batch, batch.request(), Failure.INPUT_VANISHED, "b.jsonl", retried=False)


async def test_a_damaged_segment_is_named() -> None:
    batch = await a_batch(lines=1)
    key = await batch.put([batch.success(0)])
    batch.memory.objects[key] = batch.memory.objects[key].replace(b"answer", b"anzwer")
    await assert_fails(batch, batch.request(), Failure.RESULTS_DAMAGED, key, retried=False)


async def test_a_plan_that_lacks_lines_is_named() -> None:
    batch = await a_batch(lines=4)
    key = object_keys.plan(batch.prefix, "a")
    batch.memory.objects[key] = batch.memory.objects[key][:16]
    await assert_fails(batch, batch.request(), Failure.PLAN_DAMAGED, key, retried=False)


async def test_a_result_without_a_line_is_reported_with_its_numbers() -> None:
    batch = await a_batch(lines=2)
    await batch.put([batch.success(0), batch.success(1), SegmentRecord(RecordKind.SETTLED, 7, b"{}")])
    await assert_fails(
        batch, batch.request(), Failure.RESULTS_DAMAGED, "has 2 lines; 3 have a result", retried=False
    )


async def test_a_result_that_is_in_no_plan_is_reported_with_its_numbers() -> None:
    batch = await a_batch(lines=2)
    await batch.put([batch.success(0), batch.success(1)])
    request = batch.request()
    request = request.model_copy(update={"models": request.models[:1]})
    await assert_fails(batch, request, Failure.RESULTS_DAMAGED, "(1 from slices", retried=False)


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


async def test_an_attempt_that_died_before_it_wrote_the_row_changes_nothing() -> None:
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


async def test_a_late_attempt_does_not_change_the_row_and_leaves_no_object() -> None:
    batch = await a_batch(lines=1)
    segment = await batch.put([batch.success(0)])
    batch.memory.events[segment] = lambda: win(batch)
    assert await batch.finalize() == FinalizeResult(status=BatchStatus.CANCELLED)
    assert set(batch.memory.objects) == {INPUT_KEY}


async def test_a_late_attempt_keeps_the_results_of_an_abandoned_batch() -> None:
    batch = await a_batch(lines=1)
    segment = await batch.put([batch.success(0)])
    before = set(batch.memory.objects)
    batch.memory.events[segment] = lambda: abandon(batch)
    assert await batch.finalize() == FinalizeResult(status=BatchStatus.FAILED)
    assert set(batch.memory.objects) == before


async def test_an_attempt_after_the_files_were_abandoned_keeps_the_results() -> None:
    batch = await a_batch(lines=1)
    await batch.put([batch.success(0)])
    before = set(batch.memory.objects)
    await abandon(batch)
    assert await batch.finalize() == FinalizeResult(status=BatchStatus.FAILED)
    assert set(batch.memory.objects) == before


async def test_an_attempt_that_misses_objects_deleted_by_the_winner_returns_the_same_result() -> None:
    batch = await a_batch(lines=1)
    batch.memory.events[object_keys.plan(batch.prefix, "a")] = lambda: win(batch)
    assert await batch.finalize() == FinalizeResult(status=BatchStatus.CANCELLED)


async def test_a_segment_compacted_while_it_is_read_is_read_again() -> None:
    batch = await a_batch(lines=2)
    old = await batch.put([batch.success(0)], sequence=0)
    await batch.put([batch.success(1)], sequence=1)

    async def compact() -> None:
        await batch.put([batch.success(0)], sequence=9)
        await batch.storage.delete(old)

    batch.memory.events[old] = compact
    assert await batch.finalize() == FinalizeResult(status=BatchStatus.COMPLETED, completed=2)


# Objects that an attempt leaves behind


async def test_an_attempt_that_fails_deletes_the_file_that_it_wrote_before() -> None:
    batch = await a_batch(lines=2)
    await batch.put([batch.success(0), batch.failure(1)])
    writer, keys_written = batch.memory.writer, list[str]()

    @asynccontextmanager
    async def second_fails(key: str) -> AsyncGenerator[MemoryWriter, None]:
        keys_written.append(key)
        if len(keys_written) == 2:
            raise StorageUnavailable("no disk")
        async with writer(key) as opened:
            yield opened

    batch.memory.writer = second_fails
    await assert_fails(batch, batch.request(), Failure.STORAGE_UNAVAILABLE, "no disk", retried=True)
    assert len(keys_written) == 2
    assert not set(keys_written) & batch.memory.objects.keys()


@pytest.mark.parametrize("can_delete", [True, False])
async def test_an_attempt_that_is_cancelled_deletes_its_files_if_it_can(can_delete: bool) -> None:
    batch = await a_batch(lines=1)
    segment = await batch.put([batch.success(0)])
    writer, delete, keys_written = batch.memory.writer, batch.memory.delete, list[str]()

    @asynccontextmanager
    async def noted(key: str) -> AsyncGenerator[MemoryWriter, None]:
        keys_written.append(key)
        async with writer(key) as opened:
            yield opened

    async def delete_if_it_can(key: str) -> None:
        if not can_delete:
            raise StorageUnavailable("no disk")
        await delete(key)

    async def cancel() -> None:
        await batch.database.batches.request_cancel(TENANT, BATCH_ID, CREATED)

    batch.memory.writer, batch.memory.delete = noted, delete_if_it_can
    batch.memory.events[segment] = cancel
    await assert_fails(batch, batch.request(), Failure.CANCEL_ACCEPTED, "A cancel was accepted", retried=True)
    assert bool(set(keys_written) & batch.memory.objects.keys()) is not can_delete


# Deadlines after the last result


async def test_a_batch_whose_lines_all_have_results_completes_even_after_its_deadline() -> None:
    """A worker may crash between storing the last result of a slice and reporting that the slice
    has ended.
    """
    batch = await a_batch(lines=2)
    await batch.put([batch.success(0), batch.failure(1)])
    result = await batch.finalize(batch.request(BatchStatus.EXPIRED, LineCode.BATCH_EXPIRED))
    row = await batch.database.batches.get(TENANT, BATCH_ID)
    assert row is not None
    assert result.status is row.status is BatchStatus.COMPLETED
    assert row.completed_at is not None
    assert row.finalizing_at is not None
    assert row.expired_at is None


async def test_a_batch_that_reached_its_cap_expires_even_if_all_lines_have_results() -> None:
    batch = await a_batch(lines=1)
    await batch.put([batch.success(0)])
    result = await batch.finalize(batch.request(BatchStatus.EXPIRED, LineCode.BUDGET_EXCEEDED))
    assert result.status is BatchStatus.EXPIRED


@pytest.mark.parametrize("during", [False, True])
async def test_a_batch_that_was_cancelled_after_its_deadline_expires(during: bool) -> None:
    """The workflow of the batch no longer handles the cancel. So the batch can neither complete nor be
    cancelled.
    """
    batch = await a_batch(lines=1)
    segment = await batch.put([batch.success(0)])

    async def cancel() -> None:
        await batch.database.batches.request_cancel(TENANT, BATCH_ID, datetime.now(UTC))

    if during:
        batch.memory.events[segment] = cancel
    else:
        await cancel()
    result = await batch.finalize(batch.request(BatchStatus.EXPIRED, LineCode.BATCH_EXPIRED))
    assert (result.status, result.completed) == (BatchStatus.EXPIRED, 1)


# Pending files


async def test_a_batch_that_has_ended_gets_its_pending_files_and_keeps_its_status() -> None:
    batch = await a_batch(lines=4)
    await batch.put([batch.success(0)])
    await end_with_files_pending(batch)
    ended = await batch.database.batches.get(TENANT, BATCH_ID)
    assert ended is not None
    request = batch.request(BatchStatus.EXPIRED, LineCode.BATCH_EXPIRED)
    result = await batch.finalize(request)
    assert result == FinalizeResult(
        status=BatchStatus.EXPIRED, completed=1, failed=3, failed_by_code={"batch_expired": 3}
    )
    assert await batch.ids("output") == names([0])
    assert await batch.ids("error") == names([1, 2, 3])
    row = await batch.database.batches.get(TENANT, BATCH_ID)
    assert row is not None
    assert (row.status, row.expired_at, row.files_pending) == (BatchStatus.EXPIRED, ended.expired_at, False)
    assert await batch.finalize(request) == result


async def test_a_batch_that_ends_while_its_files_are_written_gets_them() -> None:
    batch = await a_batch(lines=2)
    segment = await batch.put([batch.success(0)])
    batch.memory.events[segment] = lambda: end_with_files_pending(batch)
    result = await batch.finalize(batch.request(BatchStatus.EXPIRED, LineCode.BATCH_EXPIRED))
    assert result == FinalizeResult(
        status=BatchStatus.EXPIRED, completed=1, failed=1, failed_by_code={"batch_expired": 1}
    )
    assert await batch.ids("output") == names([0])


async def test_pending_files_that_cannot_be_written_now_are_tried_again() -> None:
    batch = await a_batch(lines=1)
    await end_with_files_pending(batch)
    batch.memory.failing = StorageUnavailable("no disk")
    request = batch.request(BatchStatus.EXPIRED, LineCode.BATCH_EXPIRED)
    await assert_fails(batch, request, Failure.STORAGE_UNAVAILABLE, "no disk", retried=True)


async def test_the_end_of_a_batch_is_not_counted_again_when_its_files_come() -> None:
    batch = await a_batch(lines=2)
    await end_with_files_pending(batch)
    request = batch.request(BatchStatus.EXPIRED, LineCode.BATCH_EXPIRED)
    await batch.finalize(request)
    labels = {"result": "expired", "reason": "expired_execution"}
    assert batch.metrics.registry.get_sample_value("batchwright_jobs_processed_total", labels) is None


# Line counts


def counted(batch: SettledBatch, name: str, **labels: str) -> float | None:
    return batch.metrics.registry.get_sample_value(f"batchwright_{name}_total", labels)


async def test_lines_that_finalization_settles_are_counted_once_by_model_and_code() -> None:
    batch = await a_batch(lines=5)
    await batch.put([batch.success(0), batch.failure(1)])
    request = batch.request(BatchStatus.EXPIRED, LineCode.BATCH_EXPIRED)
    await batch.finalize(request)
    await batch.finalize(request)
    for model, lines in (("a", 2), ("b", 1)):
        settled = counted(batch, "lines_settled_without_request", model=model, code="batch_expired")
        assert (settled, counted(batch, "request_errors_by_model", model=model)) == (lines, lines)


async def test_attempts_at_the_same_time_count_their_lines_once() -> None:
    batch = await a_batch(lines=2)
    request = batch.request(BatchStatus.CANCELLED, LineCode.BATCH_CANCELLED)
    await asyncio.gather(batch.finalize(request), batch.finalize(request))
    labels = {"model": "a", "code": "batch_cancelled"}
    assert counted(batch, "lines_settled_without_request", **labels) == 1
    assert counted(batch, "jobs_processed", result="cancelled", reason="none") == 1


async def test_lines_of_files_that_are_written_later_are_counted_then() -> None:
    batch = await a_batch(lines=2)
    await end_with_files_pending(batch)
    await batch.finalize(batch.request(BatchStatus.EXPIRED, LineCode.BATCH_EXPIRED))
    labels = {"model": "b", "code": "batch_expired"}
    assert counted(batch, "lines_settled_without_request", **labels) == 1


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
    """End the batch and delete its scratch objects, as a faster attempt of the activity would."""
    await batch.database.batch_ends.end_without_files(TENANT, BATCH_ID, BatchStatus.CANCELLED, [], CREATED)
    await batch.storage.delete_prefix(object_keys.batch_root(TENANT, BATCH_ID))


async def abandon(batch: SettledBatch) -> None:
    """Abandon the files of the batch, as an operator would."""
    until = datetime.now(UTC) + timedelta(days=1)
    await batch.database.batch_ends.end_without_files(
        TENANT, BATCH_ID, BatchStatus.FAILED, [], CREATED, until
    )


async def end_with_files_pending(batch: SettledBatch) -> None:
    until = datetime.now(UTC) + timedelta(days=1)
    await batch.database.batch_ends.end_without_files(
        TENANT, BATCH_ID, BatchStatus.EXPIRED, [], CREATED + timedelta(days=1), files_until=until
    )
