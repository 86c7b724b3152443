"""Pause, resume, and what a running batch says of itself."""

import pytest
from temporalio.api.sdk.v1 import WorkflowMetadata
from temporalio.client import WorkflowHandle

from batchwright.contracts.batch import BatchResult, BatchState, ModelProgress, WaitingReason
from batchwright.contracts.openai import BatchStatus
from batchwright.contracts.search import DEADLINE, MODELS, STATUS, TENANT
from tests.workflows.house import House, state_of
from tests.workflows.steps import finishes, ingested, share, until_cancelled
from workflows.batch import BatchWorkflow

pytestmark = pytest.mark.integration


async def shown(batch: "WorkflowHandle[BatchWorkflow, BatchResult]") -> str:
    """The current details."""
    found = await batch.query("__temporal_workflow_metadata", result_type=WorkflowMetadata)
    return found.current_details


async def test_a_paused_batch_goes_on_where_it_was(house: House) -> None:
    house.execution.behaviours[1] = until_cancelled
    async with house.workers():
        batch = await house.start()
        await house.settled(slices=1)
        await house.execution.asked(2)
        await batch.signal(BatchWorkflow.pause)
        assert (await state_of(batch)).paused
        await house.execution.ended(2)
        house.execution.behaviours[1] = finishes
        await batch.signal(BatchWorkflow.resume)
        assert (await batch.result()).status == BatchStatus.COMPLETED
    assert sorted(request.number for request in house.execution.requests) == [0, 1, 1]
    assert [request.generation for request in house.execution.requests if request.number == 0] == [0]


async def test_a_batch_paused_during_ingestion_starts_no_slice_until_resumed(house: House) -> None:
    house.ingestion.released.clear()
    async with house.workers():
        batch = await house.start()
        await house.ingestion.started.wait()
        await batch.signal(BatchWorkflow.pause)
        house.ingestion.released.set()
        while (await state_of(batch)).status != BatchStatus.IN_PROGRESS:
            pass
        assert house.execution.requests == []
        await batch.signal(BatchWorkflow.resume)
        assert (await batch.result()).status == BatchStatus.COMPLETED


async def test_a_paused_batch_can_be_cancelled(house: House) -> None:
    house.execution.behaviours["m"] = until_cancelled
    async with house.workers():
        batch = await house.start()
        await house.execution.asked(2)
        await batch.signal(BatchWorkflow.pause)
        await batch.signal(BatchWorkflow.cancel)
        assert (await batch.result()).status == BatchStatus.CANCELLED


async def test_the_window_closes_on_a_paused_batch(house: House) -> None:
    house.ingestion.released.clear()
    async with house.workers():
        batch = await house.start()
        await house.ingestion.started.wait()
        await batch.signal(BatchWorkflow.pause)
        house.ingestion.released.set()
        assert (await batch.result()).status == BatchStatus.EXPIRED
    assert house.execution.requests == []


async def test_the_state_says_why_a_model_waits(house: House) -> None:
    house.ingestion.result = ingested(share("a"), share("b"))
    house.execution.behaviours = {"a": until_cancelled, "b": until_cancelled}
    async with house.workers(["a", "b"]):
        batch = await house.start()
        await house.execution.asked(4)
        await batch.signal(BatchWorkflow.waiting, WaitingReason(model="a", reason="circuit open"))
        await batch.signal(BatchWorkflow.waiting, WaitingReason(model="b", reason="rate limited"))
        await batch.signal(BatchWorkflow.waiting, WaitingReason(model="b"))
        assert await state_of(batch) == BatchState(
            status=BatchStatus.IN_PROGRESS,
            models=[
                ModelProgress(model="a", lines=20, slices=2),
                ModelProgress(model="b", lines=20, slices=2),
            ],
            waiting=[WaitingReason(model="a", reason="circuit open")],
        )
        await batch.signal(BatchWorkflow.cancel)
        await batch.result()


async def test_the_web_ui_says_why_a_whole_batch_waits(house: House) -> None:
    house.ingestion.released.clear()
    async with house.workers():
        batch = await house.start()
        await house.ingestion.started.wait()
        await batch.signal(BatchWorkflow.waiting, WaitingReason(model="", reason="no storage"))
        assert "- waiting: no storage" in await shown(batch)
        await batch.signal(BatchWorkflow.waiting, WaitingReason(model=""))
        assert "waiting" not in await shown(batch)
        house.ingestion.released.set()
        await batch.result()


async def test_a_model_that_moves_no_longer_waits_whoever_said_so(house: House) -> None:
    house.ingestion.result = ingested(share("a", 4))
    house.execution.behaviours["a"] = until_cancelled
    async with house.workers(["a"]):
        batch = await house.start()
        await house.execution.asked(4)
        await batch.signal(BatchWorkflow.waiting, WaitingReason(model="a", reason="circuit open"))
        still = ModelProgress(model="a", lines=40, slices=4)
        await batch.signal(BatchWorkflow.progress, still)
        assert [waiting.model for waiting in (await state_of(batch)).waiting] == ["a"]
        await batch.signal(BatchWorkflow.progress, still.model_copy(update={"slices_done": 1}))
        assert (await state_of(batch)).waiting == []
        await batch.signal(BatchWorkflow.cancel)
        await batch.result()


async def test_an_ended_batch_is_found_by_its_search_attributes(house: House) -> None:
    order = await house.order()
    async with house.workers():
        batch = await house.start(order)
        await batch.result()
        attributes = (await batch.describe()).typed_search_attributes
    assert attributes[STATUS] == "completed"
    assert attributes[TENANT] == "acme"
    assert attributes[MODELS] == ["m"]
    assert attributes[DEADLINE] == order.expires_at
