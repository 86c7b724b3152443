"""Every way a batch ends before it is done: the window, a cancel, a failure."""

from datetime import timedelta

import pytest
from temporalio.exceptions import ApplicationError

from batchwright.contracts.batch import BatchPolicy, BatchResult
from batchwright.contracts.errors import Failure, LineCode
from batchwright.contracts.execution import SliceRequest, SliceResult
from batchwright.contracts.lifecycle import EndRequest
from batchwright.contracts.openai import BatchStatus, ValidationError
from tests.workflows.house import POLICY, House
from tests.workflows.steps import fails, ingested, share, until_cancelled
from workflows.batch import BatchWorkflow

pytestmark = pytest.mark.integration

# Time is skipped only while no activity is pending, so these seconds are real ones.
SHORT = timedelta(seconds=1)
LONG = timedelta(seconds=10)  # enough to settle a slice on a busy machine


def system_error(message: str) -> list[ValidationError]:
    return [ValidationError(code="system_error", message=message)]


# The window


async def test_a_closed_window_keeps_what_settled(house: House) -> None:
    """Model b has no worker: its slices wait until the deadline."""
    house.ingestion.result = ingested(share("a"), share("b"))
    async with house.workers(["a"]):
        result = await (await house.start(await house.order(window=LONG))).result()
    assert result.status == BatchStatus.EXPIRED
    assert {request.model for request in house.execution.requests} == {"a"}
    [request] = house.finalization.requests
    assert (request.status, request.unsettled) == (BatchStatus.EXPIRED, LineCode.BATCH_EXPIRED)


async def test_slices_at_work_are_stopped_when_the_window_closes(house: House) -> None:
    house.execution.behaviours["m"] = until_cancelled
    async with house.workers():
        result = await (await house.start(await house.order(window=SHORT))).result()
    assert result.status == BatchStatus.EXPIRED


async def test_a_window_that_closes_during_ingestion_runs_nothing_but_counts_the_lines(house: House) -> None:
    house.ingestion.released.clear()
    async with house.workers():
        batch = await house.start(await house.order(window=timedelta(0)))
        await house.ingestion.started.wait()
        house.ingestion.released.set()
        result = await batch.result()
    assert (result.status, result.total) == (BatchStatus.EXPIRED, 20)
    assert house.execution.requests == []
    assert [request.status for request in house.finalization.requests] == [BatchStatus.EXPIRED]


async def test_slices_that_end_themselves_at_the_deadline_make_the_batch_expire(house: House) -> None:
    """A worker's clock may be ahead of the server's: its word that the window is over counts."""

    async def closes(request: SliceRequest) -> SliceResult:
        return SliceResult(completed=3)

    house.execution.behaviours[1] = closes
    async with house.workers():
        result = await (await house.start()).result()
    assert result.status == BatchStatus.EXPIRED


# Cancel


async def test_a_cancel_during_ingestion_ends_without_files(house: House) -> None:
    house.ingestion.released.clear()
    order = await house.order()
    async with house.workers():
        batch = await house.start(order)
        await house.ingestion.started.wait()
        await batch.signal(BatchWorkflow.cancel)
        assert await batch.result() == BatchResult(status=BatchStatus.CANCELLED)
    assert house.lifecycle.requests == [EndRequest(order=order, status=BatchStatus.CANCELLED)]
    assert house.finalization.requests == []


async def test_a_cancel_before_any_worker_is_there_ends_without_files(house: House) -> None:
    batch = await house.start()
    await batch.signal(BatchWorkflow.cancel)
    async with house.workers([]):
        assert (await batch.result()).status == BatchStatus.CANCELLED
    assert house.execution.requests == []


async def test_a_cancel_while_running_stops_the_slices_and_keeps_what_settled(house: House) -> None:
    house.execution.behaviours[1] = until_cancelled
    async with house.workers():
        batch = await house.start()
        await house.settled(slices=1)
        await batch.signal(BatchWorkflow.cancel)
        assert (await batch.result()).status == BatchStatus.CANCELLED
    [request] = house.finalization.requests
    assert (request.status, request.unsettled) == (BatchStatus.CANCELLED, LineCode.BATCH_CANCELLED)


async def test_a_cancel_from_the_web_ui_is_a_cancel(house: House) -> None:
    house.execution.behaviours[1] = until_cancelled
    async with house.workers():
        batch = await house.start()
        await house.settled(slices=1)
        await batch.cancel()
        assert (await batch.result()).status == BatchStatus.CANCELLED


async def test_a_cancel_during_finalization_writes_the_files_of_a_cancelled_batch(house: House) -> None:
    house.finalization.released.clear()
    async with house.workers():
        batch = await house.start()
        await house.finalization.started.wait()
        await batch.signal(BatchWorkflow.cancel)
        assert (await batch.result()).status == BatchStatus.CANCELLED
    asked = [request.status for request in house.finalization.requests]
    assert asked == [BatchStatus.COMPLETED, BatchStatus.CANCELLED]


async def test_repeated_cancels_are_harmless(house: House) -> None:
    house.execution.behaviours["m"] = until_cancelled
    async with house.workers():
        batch = await house.start()
        await house.execution.asked(2)
        for _ in range(3):
            await batch.signal(BatchWorkflow.cancel)
        assert (await batch.result()).status == BatchStatus.CANCELLED


async def test_a_cancel_after_the_window_closed_leaves_the_batch_expired(house: House) -> None:
    house.ingestion.released.clear()
    async with house.workers():
        batch = await house.start(await house.order(window=timedelta(0)))
        await house.ingestion.started.wait()
        await batch.signal(BatchWorkflow.cancel)
        house.ingestion.released.set()
        assert (await batch.result()).status == BatchStatus.EXPIRED


# Failures


async def test_an_input_that_vanished_ends_the_batch_as_failed(house: House) -> None:
    house.ingestion.failure = ApplicationError("The input has vanished.", type=Failure.INPUT_VANISHED)
    async with house.workers():
        assert await (await house.start()).result() == BatchResult(status=BatchStatus.FAILED)
    [request] = house.lifecycle.requests
    assert request.errors == system_error("The input could not be prepared: The input has vanished.")


async def test_the_first_failure_of_a_model_stops_all_others(house: House) -> None:
    house.ingestion.result = ingested(share("a"), share("b", 1))
    house.execution.behaviours = {"a": until_cancelled, "b": fails}
    async with house.workers(["a", "b"]):
        result = await (await house.start()).result()
    assert result.status == BatchStatus.FAILED
    [request] = house.finalization.requests
    assert (request.status, request.unsettled) == (BatchStatus.FAILED, LineCode.BATCH_FAILED)
    assert request.errors == system_error("Model 'b': The plan is damaged.")


async def test_results_that_cannot_be_read_fail_the_batch_without_files(house: House) -> None:
    house.finalization.failure = ApplicationError("Segment x is damaged.", type=Failure.RESULTS_DAMAGED)
    async with house.workers():
        assert await (await house.start()).result() == BatchResult(status=BatchStatus.FAILED, total=20)
    [request] = house.lifecycle.requests
    assert request.errors == system_error("The results could not be written: Segment x is damaged.")


async def test_storage_that_stays_away_fails_the_batch_after_its_patience(house: House) -> None:
    house.finalization.failure = ApplicationError("Storage is away.", type=Failure.STORAGE_UNAVAILABLE)
    policy: BatchPolicy = POLICY.model_copy(update={"finalize_patience_seconds": 60})
    async with house.workers():
        result = await (await house.start(await house.order(policy=policy))).result()
    assert result.status == BatchStatus.FAILED
    assert len(house.finalization.requests) > 1
    assert [request.keep_results for request in house.lifecycle.requests] == [True]
