"""Slices that move to another task queue: which slices move, and what they keep."""

import asyncio

import pytest

from batchwright.contracts.temporal_names import DISPATCH_QUEUE
from batchwright.contracts.temporal_payloads.execution import ModelRunResult
from batchwright.contracts.terms import BatchStatus
from batchwright.workflows.model_run import ModelRunWorkflow
from tests.workflows.fixture import POLICY, RunHandle, WorkflowFixture
from tests.workflows.stub_activities import Belongs, ingested, share, until_cancelled

pytestmark = pytest.mark.integration

OWN = "inference.m"


async def test_a_slice_moves_to_its_queue_and_all_following_ones_start_there(
    fixture: WorkflowFixture,
) -> None:
    belongs = fixture.execution.behaviours["m"] = Belongs(DISPATCH_QUEUE)
    one_at_once = POLICY.model_copy(update={"outstanding_slices": 1})
    async with fixture.workers(), fixture.slices_at(DISPATCH_QUEUE):
        run = await fixture.start_run(await fixture.model_run(slices=3, policy=one_at_once))
        assert await run.result() == ModelRunResult(finished=True, slices_done=3, completed=30)
    assert belongs.met[0] == (OWN, 0)
    assert sorted(belongs.met[1:]) == [(DISPATCH_QUEUE, number) for number in range(3)]


async def test_outstanding_slices_move_separately_each_with_its_own_generation(
    fixture: WorkflowFixture,
) -> None:
    belongs = fixture.execution.behaviours["m"] = Belongs(DISPATCH_QUEUE)
    three_at_once = POLICY.model_copy(update={"outstanding_slices": 3})
    async with fixture.workers(), fixture.slices_at(DISPATCH_QUEUE):
        run = await fixture.start_run(await fixture.model_run(slices=3, policy=three_at_once))
        assert await run.result() == ModelRunResult(finished=True, slices_done=3, completed=30)
    requests = fixture.execution.requests
    for number in range(3):
        generations = [request.generation for request in requests if request.number == number]
        assert generations == sorted(set(generations))
        assert [queue for queue, moved in belongs.met if moved == number] == [OWN, DISPATCH_QUEUE]
    assert max(request.queue_changes for request in requests) == 1


async def test_ingestion_decides_on_which_queue_a_model_starts(fixture: WorkflowFixture) -> None:
    belongs = fixture.execution.behaviours["m"] = Belongs(DISPATCH_QUEUE)
    fixture.ingestion.result = ingested(share("m").model_copy(update={"queue": DISPATCH_QUEUE}))
    async with fixture.workers(), fixture.slices_at(DISPATCH_QUEUE):
        result = await (await fixture.start()).result()
    assert result.status == BatchStatus.COMPLETED
    assert sorted(belongs.met) == [(DISPATCH_QUEUE, 0), (DISPATCH_QUEUE, 1)]


async def test_slices_can_move_back(fixture: WorkflowFixture) -> None:
    belongs = fixture.execution.behaviours["m"] = Belongs(OWN)
    async with fixture.workers(), fixture.slices_at(DISPATCH_QUEUE):
        run = await fixture.model_run(slices=2)
        handle = await fixture.start_run(run.model_copy(update={"queue": DISPATCH_QUEUE, "queue_changes": 1}))
        assert await handle.result() == ModelRunResult(finished=True, slices_done=2, completed=20)
    assert {queue for queue, _ in belongs.met} == {OWN, DISPATCH_QUEUE}
    assert max(request.queue_changes for request in fixture.execution.requests) == 2


async def test_slices_that_are_handed_over_keep_the_queue(fixture: WorkflowFixture) -> None:
    belongs = fixture.execution.behaviours["m"] = Belongs(DISPATCH_QUEUE)
    fixture.ingestion.result = ingested(share("m", 12))
    short = POLICY.model_copy(update={"hand_over_events": 20, "outstanding_slices": 2})
    async with fixture.workers(), fixture.slices_at(DISPATCH_QUEUE):
        result = await (await fixture.start(await fixture.order(policy=short))).result()
    assert result.status == BatchStatus.COMPLETED
    assert len([queue for queue, _ in belongs.met if queue == OWN]) <= 2
    assert max(request.queue_changes for request in fixture.execution.requests) == 1


async def scheduled_at(run: RunHandle, queue: str) -> None:
    """Wait until a slice has moved to `queue`, because the test server rejects a cancel during the move."""
    while True:
        events = (await run.fetch_history()).events
        if any(event.activity_task_scheduled_event_attributes.task_queue.name == queue for event in events):
            return
        await asyncio.sleep(0.02)


async def test_a_stopped_run_does_not_wait_for_moving_slices(fixture: WorkflowFixture) -> None:
    fixture.execution.behaviours = {"m": Belongs(DISPATCH_QUEUE), 1: until_cancelled}
    async with fixture.workers():  # the other queue has no worker
        run = await fixture.start_run(await fixture.model_run(slices=2))
        await fixture.execution.wait_for_requests(2)
        await scheduled_at(run, DISPATCH_QUEUE)
        await run.signal(ModelRunWorkflow.stop)
        assert await run.result() == ModelRunResult(finished=False)
