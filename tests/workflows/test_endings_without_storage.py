"""Batches that end while storage is unavailable: their status is shown on time, and their files are written
later.
"""

import pytest
from temporalio.exceptions import ApplicationError

from batchwright.contracts.errors import Failure
from batchwright.contracts.temporal_payloads.batch import BatchPolicy, BatchResult
from batchwright.contracts.temporal_payloads.ingestion import IngestResult
from batchwright.contracts.terms import BatchStatus
from batchwright.workflows import batch_files
from batchwright.workflows.batch import BatchWorkflow
from tests.workflows.fixture import (
    POLICY,
    SHORT,
    STORAGE_AWAY,
    BatchHandle,
    WorkflowFixture,
    state_of,
    system_error,
)
from tests.workflows.stub_activities import ends_unfinished, fails, ingested, share, until_cancelled

pytestmark = pytest.mark.integration

IMPATIENT: BatchPolicy = POLICY.model_copy(update={"finalize_patience_seconds": 60})


async def test_a_batch_expires_on_time_during_a_storage_outage_and_its_files_follow(
    fixture: WorkflowFixture,
) -> None:
    fixture.execution.behaviours["m"] = until_cancelled
    fixture.finalization.failures = 3
    async with fixture.workers():
        batch = await fixture.start(await fixture.order(window=SHORT))
        result = await batch.result()
    assert result == BatchResult(status=BatchStatus.EXPIRED, total=20, completed=20)
    [end] = fixture.lifecycle.requests
    assert (end.status, end.files_pending, end.errors) == (BatchStatus.EXPIRED, True, [])
    assert [request.status for request in fixture.finalization.requests] == [BatchStatus.EXPIRED] * 4


async def test_a_cancelled_batch_ends_during_a_storage_outage(fixture: WorkflowFixture) -> None:
    fixture.execution.behaviours[1] = until_cancelled
    fixture.finalization.failures = 2
    async with fixture.workers():
        batch = await fixture.start()
        await fixture.settled(slices=1)
        await batch.signal(BatchWorkflow.cancel)
        assert (await batch.result()).status == BatchStatus.CANCELLED
    [end] = fixture.lifecycle.requests
    assert (end.status, end.files_pending) == (BatchStatus.CANCELLED, True)


async def test_a_cancel_during_a_completion_without_storage_ends_the_batch(
    fixture: WorkflowFixture,
) -> None:
    fixture.finalization.failure = STORAGE_AWAY
    async with fixture.workers():
        batch = await fixture.start()
        await fixture.finalization.started.wait()
        await batch.signal(BatchWorkflow.cancel)
        await fixture.lifecycle.ended.wait()
        fixture.finalization.failure = None
        assert (await batch.result()).status == BatchStatus.CANCELLED
    [end] = fixture.lifecycle.requests
    assert (end.status, end.files_pending) == (BatchStatus.CANCELLED, True)


async def test_a_batch_that_would_complete_waits_for_its_storage(fixture: WorkflowFixture) -> None:
    fixture.finalization.failures = 3
    async with fixture.workers():
        result = await (await fixture.start()).result()
    assert result.status == BatchStatus.COMPLETED
    assert fixture.lifecycle.requests == []


async def test_while_its_files_are_pending_an_ended_batch_shows_its_status(
    fixture: WorkflowFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_files, "FILES_TIMEOUT", SHORT)
    fixture.execution.behaviours["m"] = until_cancelled
    fixture.finalization.silent.set()
    fixture.finalization.released.clear()
    async with fixture.workers():
        batch = await fixture.start(await fixture.order(window=SHORT))
        await fixture.lifecycle.ended.wait()
        while not (state := await state_of(batch)).files_pending:
            pass
        assert state.status == BatchStatus.EXPIRED
        fixture.finalization.released.set()
        assert (await batch.result()).status == BatchStatus.EXPIRED
        assert not (await state_of(batch)).files_pending
    assert len(fixture.finalization.requests) == 1


async def test_files_that_are_never_written_leave_the_batch_expired_with_the_reason(
    fixture: WorkflowFixture,
) -> None:
    fixture.execution.behaviours["m"] = until_cancelled
    fixture.finalization.failure = STORAGE_AWAY
    async with fixture.workers():
        order = await fixture.order(window=SHORT, policy=IMPATIENT)
        result = await (await fixture.start(order)).result()
    assert result.status == BatchStatus.EXPIRED
    pending, given_up = fixture.lifecycle.requests
    assert (pending.files_pending, pending.keep_results) == (True, False)
    assert (given_up.files_pending, given_up.keep_results) == (False, True)
    assert given_up.errors == system_error("The results could not be written: object storage is unavailable.")


async def test_a_batch_whose_slices_expired_stays_expired_if_its_files_are_never_written(
    fixture: WorkflowFixture,
) -> None:
    fixture.execution.behaviours[1] = ends_unfinished
    fixture.finalization.failure = STORAGE_AWAY
    async with fixture.workers():
        result = await (await fixture.start(await fixture.order(policy=IMPATIENT))).result()
    assert result.status == BatchStatus.EXPIRED
    pending, given_up = fixture.lifecycle.requests
    assert (pending.status, given_up.status) == (BatchStatus.EXPIRED, BatchStatus.EXPIRED)


async def test_a_failed_batch_ends_during_a_storage_outage(fixture: WorkflowFixture) -> None:
    fixture.ingestion.result = ingested(share("a"), share("b", 1))
    fixture.execution.behaviours = {"a": until_cancelled, "b": fails}
    fixture.finalization.failures = 1
    async with fixture.workers(["a", "b"]):
        assert (await (await fixture.start()).result()).status == BatchStatus.FAILED
    [end] = fixture.lifecycle.requests
    assert (end.status, end.files_pending) == (BatchStatus.FAILED, True)
    assert end.errors == system_error("Model 'b': the prepared input is damaged.")


async def test_a_batch_whose_input_cannot_be_read_expires_on_time(
    fixture: WorkflowFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_files, "FILES_TIMEOUT", SHORT)
    async with fixture.workers():
        batch = await start_and_expire_during_ingestion(fixture)
        fixture.ingestion.released.set()
        result = await batch.result()
    assert result == BatchResult(status=BatchStatus.EXPIRED, total=20, completed=20)
    [end] = fixture.lifecycle.requests
    assert (end.status, end.files_pending) == (BatchStatus.EXPIRED, True)
    assert fixture.execution.requests == []


async def test_an_expired_batch_whose_input_is_found_invalid_stays_expired(
    fixture: WorkflowFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_files, "FILES_TIMEOUT", SHORT)
    fixture.ingestion.result = IngestResult(failed=True, total=7, error_count=3)
    async with fixture.workers():
        batch = await start_and_expire_during_ingestion(fixture)
        fixture.ingestion.released.set()
        assert await batch.result() == BatchResult(status=BatchStatus.EXPIRED, total=7)
    assert fixture.finalization.requests == []


async def test_an_expired_batch_whose_input_cannot_be_prepared_stays_expired(
    fixture: WorkflowFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_files, "FILES_TIMEOUT", SHORT)
    async with fixture.workers():
        batch = await start_and_expire_during_ingestion(fixture)
        fixture.ingestion.failure = ApplicationError("The input has vanished.", type=Failure.INPUT_VANISHED)
        fixture.ingestion.released.set()
        assert await batch.result() == BatchResult(status=BatchStatus.EXPIRED)
    pending, given_up = fixture.lifecycle.requests
    assert (pending.status, given_up.status) == (BatchStatus.EXPIRED, BatchStatus.EXPIRED)


async def test_an_expired_batch_whose_results_are_damaged_is_not_finalized_again(
    fixture: WorkflowFixture,
) -> None:
    fixture.execution.behaviours["m"] = until_cancelled
    fixture.finalization.failure = ApplicationError("Segment x is damaged.", type=Failure.RESULTS_DAMAGED)
    async with fixture.workers():
        assert (await (await fixture.start(await fixture.order(window=SHORT))).result()).total == 20
    assert len(fixture.finalization.requests) == 1


async def start_and_expire_during_ingestion(fixture: WorkflowFixture) -> BatchHandle:
    """Start a batch, and return it when it has expired. Its ingestion runs until the test releases it."""
    fixture.ingestion.released.clear()
    batch = await fixture.start(await fixture.order(window=SHORT))
    await fixture.ingestion.started.wait()
    await fixture.lifecycle.ended.wait()
    return batch
