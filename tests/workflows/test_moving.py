"""Slices that belong on another task queue: what moves, and what is remembered."""

import asyncio

import pytest

from batchwright.contracts.execution import ModelRunResult
from batchwright.contracts.names import DISPATCH_QUEUE
from batchwright.contracts.openai import BatchStatus
from tests.workflows.house import POLICY, House, RunHandle
from tests.workflows.steps import Belongs, ingested, share, until_cancelled
from workflows.model_run import ModelRunWorkflow

pytestmark = pytest.mark.integration

OWN = "inference.m"


async def test_a_slice_goes_on_where_it_belongs_and_all_that_follow_start_there(house: House) -> None:
    belongs = house.execution.behaviours["m"] = Belongs(DISPATCH_QUEUE)
    one_at_once = POLICY.model_copy(update={"outstanding_slices": 1})
    async with house.workers(), house.slices_at(DISPATCH_QUEUE):
        run = await house.start_run(await house.model_run(slices=3, policy=one_at_once))
        assert await run.result() == ModelRunResult(finished=True, completed=30)
    assert belongs.met[0] == (OWN, 0)
    assert sorted(belongs.met[1:]) == [(DISPATCH_QUEUE, number) for number in range(3)]


async def test_outstanding_slices_move_by_themselves_each_with_a_generation_of_its_own(house: House) -> None:
    belongs = house.execution.behaviours["m"] = Belongs(DISPATCH_QUEUE)
    three_at_once = POLICY.model_copy(update={"outstanding_slices": 3})
    async with house.workers(), house.slices_at(DISPATCH_QUEUE):
        run = await house.start_run(await house.model_run(slices=3, policy=three_at_once))
        assert await run.result() == ModelRunResult(finished=True, completed=30)
    requests = house.execution.requests
    for number in range(3):
        generations = [request.generation for request in requests if request.number == number]
        assert generations == sorted(set(generations))
    assert {queue for queue, _ in belongs.met[3:]} == {DISPATCH_QUEUE}
    assert max(request.moves for request in requests) == 1


async def test_ingestion_says_on_which_queue_a_model_begins(house: House) -> None:
    belongs = house.execution.behaviours["m"] = Belongs(DISPATCH_QUEUE)
    house.ingestion.result = ingested(share("m").model_copy(update={"queue": DISPATCH_QUEUE}))
    async with house.workers(), house.slices_at(DISPATCH_QUEUE):
        result = await (await house.start()).result()
    assert result.status == BatchStatus.COMPLETED
    assert sorted(belongs.met) == [(DISPATCH_QUEUE, 0), (DISPATCH_QUEUE, 1)]


async def test_slices_can_move_back(house: House) -> None:
    belongs = house.execution.behaviours["m"] = Belongs(OWN)
    async with house.workers(), house.slices_at(DISPATCH_QUEUE):
        run = await house.model_run(slices=2)
        handle = await house.start_run(run.model_copy(update={"queue": DISPATCH_QUEUE, "moves": 1}))
        assert await handle.result() == ModelRunResult(finished=True, completed=20)
    assert {queue for queue, _ in belongs.met} == {OWN, DISPATCH_QUEUE}
    assert max(request.moves for request in house.execution.requests) == 2


async def test_a_run_that_continues_as_new_remembers_where_its_slices_go(house: House) -> None:
    belongs = house.execution.behaviours["m"] = Belongs(DISPATCH_QUEUE)
    short = POLICY.model_copy(update={"continue_as_new_events": 20, "outstanding_slices": 2})
    async with house.workers(), house.slices_at(DISPATCH_QUEUE):
        run = await house.start_run(await house.model_run(slices=12, policy=short))
        assert await run.result() == ModelRunResult(finished=True, completed=120)
        assert run.first_execution_run_id != (await run.describe()).run_id
    assert len([queue for queue, _ in belongs.met if queue == OWN]) <= 2
    assert max(request.moves for request in house.execution.requests) == 1


async def scheduled_at(run: RunHandle, queue: str) -> None:
    """Waits until a slice has moved there: cancelled in between, the test's server refuses the cancel."""
    while True:
        events = (await run.fetch_history()).events
        if any(event.activity_task_scheduled_event_attributes.task_queue.name == queue for event in events):
            return
        await asyncio.sleep(0.02)


async def test_a_stopped_run_does_not_wait_for_slices_that_would_move(house: House) -> None:
    house.execution.behaviours = {"m": Belongs(DISPATCH_QUEUE), 1: until_cancelled}
    async with house.workers():  # nobody is at the other queue
        run = await house.start_run(await house.model_run(slices=2))
        await house.execution.asked(2)
        await scheduled_at(run, DISPATCH_QUEUE)
        await run.signal(ModelRunWorkflow.stop)
        assert await run.result() == ModelRunResult(finished=False)
