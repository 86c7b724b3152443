"""The activities that insert the row of a batch which starts later, and that end a batch without writing its
files.
"""

import pytest
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from batchwright.activities.batch_end.end_without_files import Lifecycle
from batchwright.contracts.errors import Failure
from batchwright.contracts.temporal_payloads.finalization import EndRequest
from batchwright.contracts.terms import BatchStatus, ValidationError
from batchwright.database.errors import DatabaseUnavailable
from batchwright.database.records import SliceProgress
from batchwright.storage.base import StorageUnavailable
from tests.activities.finalization.settled_batch import BATCH_ID, CREATED, INPUT_KEY, TENANT, SettledBatch
from tests.activities.slow_database import SlowDatabaseEnvironment

ERRORS = [ValidationError(code="finalization_failed", message="The storage did not come back.")]


async def a_batch() -> SettledBatch:
    batch = SettledBatch(lines=3)
    await batch.prepare()
    return batch


async def end(
    batch: SettledBatch, status: BatchStatus, *, keep_results: bool = False, files_pending: bool = False
) -> BatchStatus:
    lifecycle = Lifecycle(batch.database, batch.metrics, batch.storage)
    request = EndRequest(
        order=batch.order,
        status=status,
        errors=ERRORS,
        keep_results=keep_results,
        files_pending=files_pending,
    )
    return await ActivityEnvironment().run(lifecycle.end, request)


async def test_a_failed_batch_keeps_the_counts_reported_by_workers() -> None:
    batch = await a_batch()
    progress = SliceProgress(
        tenant=TENANT, batch_id=BATCH_ID, model="a", number=0, generation=0, attempt=1, completed=2, failed=1
    )
    await batch.database.progress.record([progress])
    assert await end(batch, BatchStatus.FAILED) is BatchStatus.FAILED
    row = await batch.database.batches.get(TENANT, BATCH_ID)
    assert row is not None
    assert (row.completed, row.failed, row.errors) == (2, 1, ERRORS)
    assert (row.output_file_id, row.error_file_id) == (None, None)


async def test_heartbeats_are_sent_while_the_database_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without them, the end of a batch whose worker was lost would be noticed only after a minute."""
    batch = await a_batch()
    lifecycle = Lifecycle(batch.database, batch.metrics, batch.storage)
    environment = SlowDatabaseEnvironment(monkeypatch)
    environment.slow_down(batch.database.batches, "upsert")
    await environment.run(lifecycle.insert_row, batch.order)
    request = EndRequest(order=batch.order, status=BatchStatus.FAILED, errors=ERRORS)
    assert await environment.run(lifecycle.end, request) is BatchStatus.FAILED


async def test_a_batch_that_was_never_started_can_end() -> None:
    batch = SettledBatch(lines=1)
    assert await end(batch, BatchStatus.CANCELLED) is BatchStatus.CANCELLED
    row = await batch.database.batches.get(TENANT, BATCH_ID)
    assert row is not None
    assert row.cancelled_at is not None


async def test_temporary_objects_are_deleted_and_the_input_stays() -> None:
    batch = await a_batch()
    await end(batch, BatchStatus.CANCELLED)
    assert set(batch.memory.objects) == {INPUT_KEY}


async def test_results_of_a_batch_whose_files_could_not_be_written_are_kept() -> None:
    batch = await a_batch()
    before = set(batch.memory.objects)
    await end(batch, BatchStatus.FAILED, keep_results=True)
    assert set(batch.memory.objects) == before != {INPUT_KEY}


async def test_a_batch_that_has_ended_stays_as_it_is() -> None:
    batch = await a_batch()
    await batch.database.batch_ends.end_without_files(TENANT, BATCH_ID, BatchStatus.EXPIRED, [], CREATED)
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


async def test_a_broken_storage_does_not_prevent_the_end_of_a_batch() -> None:
    batch = await a_batch()
    batch.memory.failing = StorageUnavailable("no disk")
    assert await end(batch, BatchStatus.FAILED) is BatchStatus.FAILED


async def test_database_trouble_is_retried() -> None:
    batch = await a_batch()
    batch.database.rows.failing = DatabaseUnavailable("no server")
    with pytest.raises(ApplicationError) as caught:
        await end(batch, BatchStatus.FAILED)
    assert (caught.value.type, caught.value.non_retryable) == (Failure.DATABASE_UNAVAILABLE, False)


async def test_a_batch_that_ends_with_pending_files_keeps_their_segments() -> None:
    batch = await a_batch()
    before = set(batch.memory.objects)
    batch.memory.failing = StorageUnavailable("no disk")
    assert await end(batch, BatchStatus.EXPIRED, files_pending=True) is BatchStatus.EXPIRED
    assert set(batch.memory.objects) == before
    row = await batch.database.batches.get(TENANT, BATCH_ID)
    assert row is not None
    assert row.files_pending


async def test_abandoned_pending_files_do_not_change_the_status_and_the_error_has_the_reason() -> None:
    batch = await a_batch()
    before = set(batch.memory.objects)
    await end(batch, BatchStatus.EXPIRED, files_pending=True)
    assert await end(batch, BatchStatus.EXPIRED, keep_results=True) is BatchStatus.EXPIRED
    row = await batch.database.batches.get(TENANT, BATCH_ID)
    assert row is not None
    assert (row.status, row.files_pending, row.errors) == (BatchStatus.EXPIRED, False, ERRORS)
    assert row.results_kept_until is not None
    assert set(batch.memory.objects) == before


async def test_an_end_with_files_pending_is_counted_once() -> None:
    batch = await a_batch()
    await end(batch, BatchStatus.CANCELLED, files_pending=True)
    await end(batch, BatchStatus.CANCELLED, files_pending=True)
    await end(batch, BatchStatus.CANCELLED)
    count = batch.metrics.registry.get_sample_value
    labels = {"result": "cancelled", "reason": "none"}
    assert count("batchwright_jobs_processed_total", labels) == 1


async def test_the_row_of_a_batch_that_starts_later_is_inserted_once() -> None:
    batch = SettledBatch(lines=1)
    lifecycle = Lifecycle(batch.database, batch.metrics, batch.storage)
    await ActivityEnvironment().run(lifecycle.insert_row, batch.order)
    row = await batch.database.batches.get(TENANT, BATCH_ID)
    await ActivityEnvironment().run(lifecycle.insert_row, batch.order)
    assert row is not None
    assert await batch.database.batches.get(TENANT, BATCH_ID) == row
