"""An operator abandons the files of a batch, because they cannot be written."""

import pytest

from batchwright.contracts.temporal_payloads.batch import BatchResult
from batchwright.contracts.terms import BatchStatus
from batchwright.workflows import batch_files
from batchwright.workflows.batch import BatchWorkflow
from tests.workflows.fixture import SHORT, STORAGE_AWAY, WorkflowFixture, state_of, system_error
from tests.workflows.stub_activities import ends_unfinished, until_cancelled

pytestmark = pytest.mark.integration

ABANDONED = (
    "An operator stopped the writing of the files, because it could not be completed. The results are kept: "
    "resume the batch to get its files."
)


async def test_an_abandoned_completion_fails_the_batch_and_keeps_its_results(
    fixture: WorkflowFixture,
) -> None:
    fixture.finalization.released.clear()
    async with fixture.workers():
        batch = await fixture.start()
        await fixture.finalization.started.wait()
        await batch.signal(BatchWorkflow.abandon)
        assert await batch.result() == BatchResult(status=BatchStatus.FAILED, total=20)
    [end] = fixture.lifecycle.requests
    assert (end.status, end.keep_results, end.files_pending) == (BatchStatus.FAILED, True, False)
    assert end.errors == system_error(ABANDONED)


async def test_a_completion_that_waits_for_storage_is_abandoned(fixture: WorkflowFixture) -> None:
    fixture.finalization.failure = STORAGE_AWAY
    async with fixture.workers():
        batch = await fixture.start()
        await fixture.finalization.started.wait()
        await batch.signal(BatchWorkflow.abandon)
        assert (await batch.result()).status == BatchStatus.FAILED
    assert [request.keep_results for request in fixture.lifecycle.requests] == [True]


async def test_an_expired_batch_whose_pending_files_are_abandoned_stays_expired(
    fixture: WorkflowFixture,
) -> None:
    fixture.execution.behaviours["m"] = until_cancelled
    fixture.finalization.failure = STORAGE_AWAY
    async with fixture.workers():
        batch = await fixture.start(await fixture.order(window=SHORT))
        await fixture.lifecycle.ended.wait()
        await batch.signal(BatchWorkflow.abandon)
        assert (await batch.result()).status == BatchStatus.EXPIRED
    pending, end = fixture.lifecycle.requests
    assert (pending.files_pending, pending.keep_results) == (True, False)
    assert (end.status, end.files_pending, end.keep_results) == (BatchStatus.EXPIRED, False, True)
    assert end.errors == system_error(ABANDONED)


async def test_a_batch_that_is_not_finalizing_cannot_be_abandoned(fixture: WorkflowFixture) -> None:
    fixture.ingestion.released.clear()
    async with fixture.workers():
        batch = await fixture.start()
        await fixture.ingestion.started.wait()
        await batch.signal(BatchWorkflow.abandon)
        fixture.ingestion.released.set()
        assert (await batch.result()).status == BatchStatus.COMPLETED
    assert fixture.lifecycle.requests == []


async def test_an_abandoned_batch_whose_slices_expired_is_expired(fixture: WorkflowFixture) -> None:
    fixture.execution.behaviours[1] = ends_unfinished
    fixture.finalization.silent.set()
    fixture.finalization.released.clear()
    async with fixture.workers():
        batch = await fixture.start()
        await fixture.finalization.started.wait()
        await batch.signal(BatchWorkflow.abandon)
        assert (await batch.result()).status == BatchStatus.EXPIRED
    [end] = fixture.lifecycle.requests
    assert (end.status, end.keep_results) == (BatchStatus.EXPIRED, True)


async def test_an_expired_batch_whose_input_is_still_being_read_is_abandoned(
    fixture: WorkflowFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_files, "FILES_TIMEOUT", SHORT)
    fixture.ingestion.released.clear()
    async with fixture.workers():
        batch = await fixture.start(await fixture.order(window=SHORT))
        await fixture.lifecycle.ended.wait()
        while not (await state_of(batch)).files_pending:
            pass
        await batch.signal(BatchWorkflow.abandon)
        assert await batch.result() == BatchResult(status=BatchStatus.EXPIRED)
    pending, end = fixture.lifecycle.requests
    assert (pending.files_pending, end.files_pending, end.keep_results) == (True, False, False)
    assert end.errors == system_error(
        "An operator stopped the reading of the input, because it could not be completed. No line was sent: "
        "resume the batch to send its lines."
    )
    assert fixture.finalization.requests == []
