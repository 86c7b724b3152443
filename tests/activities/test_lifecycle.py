"""Ends without files."""

import pytest
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from activities.lifecycle import Lifecycle
from batchwright.contracts.errors import Failure
from batchwright.contracts.lifecycle import EndRequest
from batchwright.contracts.openai import BatchStatus, ValidationError
from batchwright.database.errors import DatabaseUnavailable
from batchwright.database.rows import SliceProgress
from batchwright.storage.base import StorageUnavailable
from tests.activities.settled_batch import BATCH_ID, CREATED, INPUT_KEY, TENANT, SettledBatch

ERRORS = [ValidationError(code="finalization_failed", message="The storage did not come back.")]


async def a_batch() -> SettledBatch:
    batch = SettledBatch(lines=3)
    await batch.prepare()
    return batch


async def end(batch: SettledBatch, status: BatchStatus, *, keep_results: bool = False) -> BatchStatus:
    lifecycle = Lifecycle(batch.database, batch.metrics, batch.storage)
    request = EndRequest(order=batch.order, status=status, errors=ERRORS, keep_results=keep_results)
    return await ActivityEnvironment().run(lifecycle.end, request)


async def test_a_failed_batch_keeps_the_counts_its_workers_told() -> None:
    batch = await a_batch()
    told = SliceProgress(
        tenant=TENANT, batch_id=BATCH_ID, model="a", number=0, generation=0, attempt=1, completed=2, failed=1
    )
    await batch.database.progress.record([told])
    assert await end(batch, BatchStatus.FAILED) is BatchStatus.FAILED
    row = await batch.database.batches.get(TENANT, BATCH_ID)
    assert row is not None
    assert (row.completed, row.failed, row.errors) == (2, 1, ERRORS)
    assert (row.output_file_id, row.error_file_id) == (None, None)


async def test_a_batch_nobody_has_begun_can_end() -> None:
    batch = SettledBatch(lines=1)
    assert await end(batch, BatchStatus.CANCELLED) is BatchStatus.CANCELLED
    row = await batch.database.batches.get(TENANT, BATCH_ID)
    assert row is not None
    assert row.cancelled_at is not None


async def test_its_scratch_goes_and_its_input_stays() -> None:
    batch = await a_batch()
    await end(batch, BatchStatus.CANCELLED)
    assert set(batch.memory.objects) == {INPUT_KEY}


async def test_the_results_of_a_batch_whose_files_could_not_be_written_stay() -> None:
    batch = await a_batch()
    before = set(batch.memory.objects)
    await end(batch, BatchStatus.FAILED, keep_results=True)
    assert set(batch.memory.objects) == before != {INPUT_KEY}


async def test_a_batch_that_has_ended_stays_as_it_is() -> None:
    batch = await a_batch()
    await batch.database.batches.end(TENANT, BATCH_ID, BatchStatus.EXPIRED, [], CREATED)
    before = await batch.database.batches.get(TENANT, BATCH_ID)
    assert await end(batch, BatchStatus.FAILED) is BatchStatus.EXPIRED
    assert await batch.database.batches.get(TENANT, BATCH_ID) == before


async def test_ends_are_counted_once() -> None:
    batch = await a_batch()
    await end(batch, BatchStatus.FAILED)
    await end(batch, BatchStatus.FAILED)
    count = batch.metrics.registry.get_sample_value
    labels = {"result": "failed", "reason": "system_error"}
    assert count("batchwright_jobs_processed_total", labels) == 1


async def test_a_broken_storage_does_not_keep_a_batch_from_ending() -> None:
    batch = await a_batch()
    batch.memory.failing = StorageUnavailable("no disk")
    assert await end(batch, BatchStatus.FAILED) is BatchStatus.FAILED


async def test_database_trouble_is_retried() -> None:
    batch = await a_batch()
    batch.database.rows.failing = DatabaseUnavailable("no server")
    with pytest.raises(ApplicationError) as caught:
        await end(batch, BatchStatus.FAILED)
    assert (caught.value.type, caught.value.non_retryable) == (Failure.DATABASE_UNAVAILABLE, False)
