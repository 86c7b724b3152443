"""A batch with few slices: its own workflow has them, and steers them as a model run would."""

from datetime import timedelta

import pytest
from temporalio.api.enums.v1 import EventType

from batchwright.contracts.batch import BatchResult, BatchState, ModelProgress, WaitingReason
from batchwright.contracts.names import DISPATCH_QUEUE
from batchwright.contracts.openai import BatchStatus
from batchwright.contracts.search import DEADLINE, MODELS, STATUS, TENANT
from batchwright.temporal.starting import start_batch
from tests.e2e.batches import until
from tests.replay.few_slices import WITHIN, begun, begun_and_asked, one_fails_for_good, paused_and_resumed
from tests.workflows.house import BatchHandle, House, state_of
from tests.workflows.steps import Belongs, finishes, ingested, share, until_cancelled
from workflows.batch import BatchWorkflow

pytestmark = pytest.mark.integration


async def kinds(batch: BatchHandle) -> list["EventType.ValueType"]:
    return [event.event_type async for event in batch.fetch_history_events()]


async def test_no_model_run_is_started_for_few_slices_and_for_one_more_there_is(house: House) -> None:
    house.ingestion.result = ingested(share("m", 9), share("n", 7))
    children = {}
    async with house.workers(["m", "n"]):
        for slices in (16, 15):
            policy = WITHIN.model_copy(update={"inline_slices": slices})
            order = (await house.order(policy=policy)).model_copy(update={"batch_id": f"batch_{slices}"})
            batch = await house.start(order)
            assert await batch.result() == BatchResult(status=BatchStatus.COMPLETED, total=160, completed=160)
            children[slices] = (await kinds(batch)).count(
                EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED
            )
    assert children == {16: 0, 15: 2}


async def test_a_paused_batch_goes_on_where_it_was(house: House) -> None:
    house.execution.behaviours[1] = until_cancelled
    async with house.workers():
        batch = await begun(house)

        async def one_is_done() -> bool:
            return [model.slices_done for model in (await state_of(batch)).models] == [1]

        await until(one_is_done)
        await batch.signal(BatchWorkflow.pause)
        assert (await state_of(batch)).paused
        house.execution.behaviours[1] = finishes
        await batch.signal(BatchWorkflow.resume)
        assert (await batch.result()).status == BatchStatus.COMPLETED
    asked = sorted((request.number, request.generation) for request in house.execution.requests)
    assert asked == [(0, 0), (1, 0), (1, 1)]


async def test_a_batch_paused_during_ingestion_starts_no_slice_until_resumed(house: House) -> None:
    house.ingestion.released.clear()
    async with house.workers():
        batch = await begun(house)
        await house.ingestion.started.wait()
        await batch.signal(BatchWorkflow.pause)
        house.ingestion.released.set()

        async def has_begun() -> bool:
            return (await state_of(batch)).status == BatchStatus.IN_PROGRESS

        await until(has_begun)
        assert house.execution.requests == []
        await batch.signal(BatchWorkflow.resume)
        assert (await batch.result()).status == BatchStatus.COMPLETED


@pytest.mark.parametrize("first", [None, "pause"], ids=["at once", "after a pause"])
async def test_a_cancel_ends_the_slices_and_the_batch(house: House, first: str | None) -> None:
    async with house.workers():
        batch = await begun_and_asked(house)
        if first is not None:
            await batch.signal(first)
        await batch.signal(BatchWorkflow.cancel)
        assert (await batch.result()).status == BatchStatus.CANCELLED


async def test_a_cancel_from_the_web_ui_ends_it_as_cancelled(house: House) -> None:
    async with house.workers():
        batch = await begun_and_asked(house)
        await batch.cancel()
        assert (await batch.result()).status == BatchStatus.CANCELLED


async def test_the_window_closes_on_its_slices(house: House) -> None:
    house.execution.behaviours["m"] = until_cancelled
    async with house.workers():
        batch = await begun(house, timedelta(seconds=1))
        assert (await batch.result()).status == BatchStatus.EXPIRED
    [request] = house.finalization.requests
    assert request.unsettled == "batch_expired"


async def test_a_slice_that_fails_for_good_fails_the_batch_and_stops_the_other_models(house: House) -> None:
    one_fails_for_good(house)
    async with house.workers(["m", "n"]):
        batch = await begun(house)
        assert (await batch.result()).status == BatchStatus.FAILED
    [request] = house.finalization.requests
    assert [error.message for error in request.errors] == ["Model 'n': The plan is damaged."]


async def test_slices_move_to_the_queue_where_they_belong(house: House) -> None:
    belongs = house.execution.behaviours["m"] = Belongs(DISPATCH_QUEUE)
    async with house.workers(), house.slices_at(DISPATCH_QUEUE):
        assert (await (await begun(house)).result()).status == BatchStatus.COMPLETED
    assert sorted(number for queue, number in belongs.met if queue == DISPATCH_QUEUE) == [0, 1]


async def test_what_moves_no_longer_waits(house: House) -> None:
    async with house.workers():
        batch = await begun_and_asked(house)
        await batch.signal(BatchWorkflow.waiting, WaitingReason(model="m", reason="circuit open"))
        assert await state_of(batch) == BatchState(
            status=BatchStatus.IN_PROGRESS,
            models=[ModelProgress(model="m", lines=20, slices=2)],
            waiting=[WaitingReason(model="m", reason="circuit open")],
        )
        await paused_and_resumed(house, batch)
        assert (await state_of(batch)).waiting == []


async def test_what_the_start_has_set_is_not_set_again(house: House) -> None:
    order = await house.order(policy=WITHIN)
    async with house.workers():
        await start_batch(house.client, order)
        batch = house.client.get_workflow_handle_for(BatchWorkflow.run, order.batch_id)
        await batch.result()
        attributes = (await batch.describe()).typed_search_attributes
    assert attributes[STATUS] == "completed"
    assert attributes[TENANT] == "acme"
    assert attributes[MODELS] == ["m"]
    assert attributes[DEADLINE] == order.expires_at
    told = (await kinds(batch)).count(EventType.EVENT_TYPE_UPSERT_WORKFLOW_SEARCH_ATTRIBUTES)
    assert told == 3  # in_progress, finalizing, completed


async def test_a_run_that_was_started_by_hand_sets_what_is_missing(house: House) -> None:
    async with house.workers():
        batch = await begun(house)
        await batch.result()
        attributes = (await batch.describe()).typed_search_attributes
    assert attributes[STATUS] == "completed"
    assert attributes[TENANT] == "acme"
