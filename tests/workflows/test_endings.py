"""Every way in which a batch ends early: the deadline, a cancel, a failure."""

from datetime import timedelta

import pytest
from temporalio.exceptions import ApplicationError

from batchwright.contracts.errors import Failure, LineCode
from batchwright.contracts.temporal_payloads.batch import BatchPolicy, BatchResult
from batchwright.contracts.temporal_payloads.execution import SliceRequest, SliceResult
from batchwright.contracts.temporal_payloads.finalization import EndRequest
from batchwright.contracts.terms import BatchStatus
from batchwright.workflows.batch import BatchWorkflow
from tests.workflows.fixture import POLICY, SHORT, WorkflowFixture, system_error
from tests.workflows.stub_activities import FINISHED, fails, ingested, share, until_cancelled

pytestmark = pytest.mark.integration

LONG = timedelta(seconds=20)  # enough to settle a slice on a busy machine


# The deadline


async def test_the_deadline_keeps_settled_lines(fixture: WorkflowFixture) -> None:
    """Model b has no worker: its slices wait until the deadline."""
    fixture.ingestion.result = ingested(share("a"), share("b"))
    async with fixture.workers(["a"]):
        result = await (await fixture.start(await fixture.order(window=LONG))).result()
    assert result.status == BatchStatus.EXPIRED
    assert {request.model for request in fixture.execution.requests} == {"a"}
    [request] = fixture.finalization.requests
    assert (request.status, request.missing_line_code) == (BatchStatus.EXPIRED, LineCode.BATCH_EXPIRED)


async def test_running_slices_are_stopped_at_the_deadline(fixture: WorkflowFixture) -> None:
    fixture.execution.behaviours["m"] = until_cancelled
    async with fixture.workers():
        result = await (await fixture.start(await fixture.order(window=SHORT))).result()
    assert result.status == BatchStatus.EXPIRED


async def test_a_batch_whose_files_are_written_in_time_ends_with_them(fixture: WorkflowFixture) -> None:
    fixture.execution.behaviours["m"] = until_cancelled
    async with fixture.workers():
        result = await (await fixture.start(await fixture.order(window=SHORT))).result()
    assert result.status == BatchStatus.EXPIRED
    assert fixture.lifecycle.requests == []


async def test_a_deadline_during_ingestion_starts_no_slice_but_counts_the_lines(
    fixture: WorkflowFixture,
) -> None:
    fixture.ingestion.released.clear()
    async with fixture.workers():
        batch = await fixture.start(await fixture.order(window=timedelta(0)))
        await fixture.ingestion.started.wait()
        fixture.ingestion.released.set()
        result = await batch.result()
    assert (result.status, result.total) == (BatchStatus.EXPIRED, 20)
    assert fixture.execution.requests == []
    assert [request.status for request in fixture.finalization.requests] == [BatchStatus.EXPIRED]


async def test_slices_that_end_themselves_at_the_deadline_make_the_batch_expire(
    fixture: WorkflowFixture,
) -> None:
    """The clock of a worker may be ahead of the server's clock. The batch expires when the worker reports the
    deadline.
    """

    async def closes(request: SliceRequest) -> SliceResult:
        return SliceResult(completed=3)

    fixture.execution.behaviours[1] = closes
    async with fixture.workers():
        result = await (await fixture.start()).result()
    assert result.status == BatchStatus.EXPIRED


# The cap on the cost


async def test_a_slice_that_finds_the_batch_over_its_cap_ends_the_batch_with_its_results(
    fixture: WorkflowFixture,
) -> None:
    """The slices of the other model are stopped, too."""

    async def over_cap(request: SliceRequest) -> SliceResult:
        return SliceResult(over_cap=True, completed=3)

    fixture.ingestion.result = ingested(share("a", slices=1), share("b"))
    fixture.execution.behaviours["a"] = over_cap
    fixture.execution.behaviours["b"] = until_cancelled
    async with fixture.workers(["a", "b"]):
        result = await (await fixture.start()).result()
    assert result.status == BatchStatus.EXPIRED
    [request] = fixture.finalization.requests
    assert (request.status, request.missing_line_code) == (BatchStatus.EXPIRED, LineCode.BUDGET_EXCEEDED)
    [error] = request.errors
    assert error.code == "budget_exceeded"
    assert "x_batchwright.max_cost" in error.message


# Cancel


async def test_a_cancel_during_ingestion_ends_without_files(fixture: WorkflowFixture) -> None:
    fixture.ingestion.released.clear()
    order = await fixture.order()
    async with fixture.workers():
        batch = await fixture.start(order)
        await fixture.ingestion.started.wait()
        await batch.signal(BatchWorkflow.cancel)
        assert await batch.result() == BatchResult(status=BatchStatus.CANCELLED)
    assert fixture.lifecycle.requests == [EndRequest(order=order, status=BatchStatus.CANCELLED)]
    assert fixture.finalization.requests == []


async def test_a_batch_cancelled_before_any_worker_runs_ends_without_files(fixture: WorkflowFixture) -> None:
    batch = await fixture.start()
    await batch.signal(BatchWorkflow.cancel)
    async with fixture.workers([]):
        assert (await batch.result()).status == BatchStatus.CANCELLED
    assert fixture.execution.requests == []


async def test_a_cancel_while_running_stops_the_slices_and_keeps_settled_lines(
    fixture: WorkflowFixture,
) -> None:
    fixture.execution.behaviours[1] = until_cancelled
    async with fixture.workers():
        batch = await fixture.start()
        await fixture.settled(slices=1)
        await batch.signal(BatchWorkflow.cancel)
        assert (await batch.result()).status == BatchStatus.CANCELLED
    [request] = fixture.finalization.requests
    assert (request.status, request.missing_line_code) == (BatchStatus.CANCELLED, LineCode.BATCH_CANCELLED)


async def test_a_cancel_from_the_web_ui_is_a_cancel(fixture: WorkflowFixture) -> None:
    fixture.execution.behaviours[1] = until_cancelled
    async with fixture.workers():
        batch = await fixture.start()
        await fixture.settled(slices=1)
        await batch.cancel()
        assert (await batch.result()).status == BatchStatus.CANCELLED


async def test_a_cancel_during_finalization_writes_the_files_of_a_cancelled_batch(
    fixture: WorkflowFixture,
) -> None:
    fixture.finalization.released.clear()
    async with fixture.workers():
        batch = await fixture.start()
        await fixture.finalization.started.wait()
        await batch.signal(BatchWorkflow.cancel)
        assert (await batch.result()).status == BatchStatus.CANCELLED
    statuses = [request.status for request in fixture.finalization.requests]
    assert statuses == [BatchStatus.COMPLETED, BatchStatus.CANCELLED]


async def test_repeated_cancels_are_harmless(fixture: WorkflowFixture) -> None:
    fixture.execution.behaviours["m"] = until_cancelled
    async with fixture.workers():
        batch = await fixture.start()
        await fixture.execution.wait_for_requests(2)
        for _ in range(3):
            await batch.signal(BatchWorkflow.cancel)
        assert (await batch.result()).status == BatchStatus.CANCELLED


async def finishes_when_it_has_to_stop(request: SliceRequest) -> SliceResult:
    await until_cancelled(request)
    return FINISHED


async def test_a_batch_whose_last_lines_are_settled_at_the_deadline_is_completed(
    fixture: WorkflowFixture,
) -> None:
    fixture.execution.behaviours["m"] = finishes_when_it_has_to_stop
    async with fixture.workers():
        result = await (await fixture.start(await fixture.order(window=SHORT))).result()
    assert result.status == BatchStatus.COMPLETED
    assert [request.status for request in fixture.finalization.requests] == [BatchStatus.COMPLETED]


async def test_a_cancelled_batch_whose_last_lines_are_settled_meanwhile_is_cancelled(
    fixture: WorkflowFixture,
) -> None:
    fixture.execution.behaviours["m"] = finishes_when_it_has_to_stop
    async with fixture.workers():
        batch = await fixture.start()
        await fixture.execution.wait_for_requests(2)
        await batch.signal(BatchWorkflow.cancel)
        assert (await batch.result()).status == BatchStatus.CANCELLED


async def test_a_cancel_after_the_deadline_leaves_the_batch_expired(fixture: WorkflowFixture) -> None:
    fixture.ingestion.released.clear()
    async with fixture.workers():
        batch = await fixture.start(await fixture.order(window=timedelta(0)))
        await fixture.ingestion.started.wait()
        await batch.signal(BatchWorkflow.cancel)
        fixture.ingestion.released.set()
        assert (await batch.result()).status == BatchStatus.EXPIRED


# Failures


async def test_a_missing_input_fails_the_batch(fixture: WorkflowFixture) -> None:
    fixture.ingestion.failure = ApplicationError("The input has vanished.", type=Failure.INPUT_VANISHED)
    async with fixture.workers():
        assert await (await fixture.start()).result() == BatchResult(status=BatchStatus.FAILED)
    [request] = fixture.lifecycle.requests
    assert request.errors == system_error(
        "The input could not be prepared: the input file is no longer in storage."
    )


async def test_the_first_failure_of_a_model_stops_all_others(fixture: WorkflowFixture) -> None:
    fixture.ingestion.result = ingested(share("a"), share("b", 1))
    fixture.execution.behaviours = {"a": until_cancelled, "b": fails}
    async with fixture.workers(["a", "b"]):
        result = await (await fixture.start()).result()
    assert result.status == BatchStatus.FAILED
    [request] = fixture.finalization.requests
    assert (request.status, request.missing_line_code) == (BatchStatus.FAILED, LineCode.BATCH_FAILED)
    assert request.errors == system_error("Model 'b': the prepared input is damaged.")


async def test_results_that_cannot_be_read_fail_the_batch_without_files(fixture: WorkflowFixture) -> None:
    fixture.finalization.failure = ApplicationError("Segment x is damaged.", type=Failure.RESULTS_DAMAGED)
    async with fixture.workers():
        assert await (await fixture.start()).result() == BatchResult(status=BatchStatus.FAILED, total=20)
    [request] = fixture.lifecycle.requests
    assert request.errors == system_error("The results could not be written: stored results are damaged.")


async def test_a_storage_outage_longer_than_the_patience_fails_the_batch(fixture: WorkflowFixture) -> None:
    fixture.finalization.failure = ApplicationError("Storage is away.", type=Failure.STORAGE_UNAVAILABLE)
    policy: BatchPolicy = POLICY.model_copy(update={"finalize_patience_seconds": 60})
    async with fixture.workers():
        result = await (await fixture.start(await fixture.order(policy=policy))).result()
    assert result.status == BatchStatus.FAILED
    assert len(fixture.finalization.requests) > 1
    assert [request.keep_results for request in fixture.lifecycle.requests] == [True]
