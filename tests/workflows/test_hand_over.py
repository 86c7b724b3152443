"""A model run (the workflow for one model of a batch) with a long history hands its remaining slices over to
another one.
"""

import asyncio
from collections import Counter

import pytest
from temporalio import activity, workflow
from temporalio.client import WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import Worker
from temporalio.workflow import ParentClosePolicy

from batchwright.contracts.temporal_names import CONTROL_QUEUE, model_run_id
from batchwright.contracts.temporal_payloads.batch import BatchPolicy, Caller, ModelProgress
from batchwright.contracts.temporal_payloads.execution import (
    ModelRun,
    ModelRunResult,
    SliceRequest,
    SliceResult,
)
from batchwright.contracts.terms import BatchStatus
from batchwright.workflows import options
from batchwright.workflows.batch import BatchWorkflow
from batchwright.workflows.model_run import ModelRunWorkflow
from tests.workflows.fixture import POLICY, BatchHandle, RunHandle, WorkflowFixture, state_of
from tests.workflows.stub_activities import FINISHED, fails, ingested, share, until_cancelled

pytestmark = pytest.mark.integration
SLICES = 12
# A history of 20 events has about three slices.
SHORT: BatchPolicy = POLICY.model_copy(update={"hand_over_events": 20, "outstanding_slices": 2})


async def started(fixture: WorkflowFixture, policy: BatchPolicy = SHORT) -> BatchHandle:
    fixture.ingestion.result = ingested(share("m", SLICES))
    return await fixture.start(await fixture.order(policy=policy))


def run_of(fixture: WorkflowFixture, number: int) -> RunHandle:
    return fixture.client.get_workflow_handle_for(ModelRunWorkflow.run, model_run_id("batch_1", "m", number))


async def slices_done(fixture: WorkflowFixture) -> int:
    """Return how many slices all model runs of the batch together have counted as finished."""
    found = 0
    try:
        for number in range(1, SLICES + 1):
            found += (await run_of(fixture, number).query(ModelRunWorkflow.progress)).slices_done
    except RPCError as error:
        if error.status != RPCStatusCode.NOT_FOUND:
            raise
    return found


async def until_only_waiting(fixture: WorkflowFixture, waiting: int) -> None:
    """Wait until all slices have begun, and all but `waiting` of them are counted as finished.

    `WorkflowFixture.settled` says why a test must wait for this before it cancels.
    """
    await fixture.execution.wait_for_requests(SLICES)
    while await slices_done(fixture) < SLICES - waiting:
        pass


def counted(fixture: WorkflowFixture) -> Counter[int]:
    """Return how often each slice has been started."""
    return Counter(request.number for request in fixture.execution.requests)


async def test_a_long_history_is_continued_by_other_model_runs_and_loses_no_slice(
    fixture: WorkflowFixture,
) -> None:
    async with fixture.workers():
        batch = await started(fixture)
        assert (await batch.result()).status == BatchStatus.COMPLETED
        [progress] = (await state_of(batch)).models
        assert await slices_done(fixture) == SLICES
        assert (await run_of(fixture, 1).query(ModelRunWorkflow.progress)).slices_done < SLICES
    assert counted(fixture) == Counter(range(SLICES))
    assert len({request.generation for request in fixture.execution.requests}) > 1
    assert progress == ModelProgress(model="m", lines=120, slices=SLICES, slices_done=SLICES)


async def test_a_slice_that_runs_during_the_hand_over_is_not_ended_and_the_others_do_not_wait_for_it(
    fixture: WorkflowFixture,
) -> None:
    """The first slice ends only when all other slices have been started."""

    async def waits(request: SliceRequest) -> SliceResult:
        while len(fixture.execution.requests) < SLICES:
            activity.heartbeat()
            await asyncio.sleep(0.02)
        return FINISHED

    fixture.execution.behaviours[0] = waits
    async with fixture.workers():
        batch = await started(fixture)
        assert (await batch.result()).status == BatchStatus.COMPLETED
    assert counted(fixture) == Counter(range(SLICES))


async def test_a_pause_and_its_resume_reach_all_model_runs_of_a_model(fixture: WorkflowFixture) -> None:
    fixture.execution.behaviours = {0: until_cancelled, SLICES - 1: until_cancelled}
    async with fixture.workers():
        batch = await started(fixture)
        await until_only_waiting(fixture, 2)
        await batch.signal(BatchWorkflow.pause)
        await fixture.execution.ended(SLICES)
        fixture.execution.behaviours = {}
        await batch.signal(BatchWorkflow.resume)
        assert (await batch.result()).status == BatchStatus.COMPLETED
    assert counted(fixture) == Counter(range(SLICES)) + Counter({0: 1, SLICES - 1: 1})
    for number in (0, SLICES - 1):
        requests = [request for request in fixture.execution.requests if request.number == number]
        assert requests[0].generation < requests[1].generation


async def test_a_cancel_ends_all_model_runs_of_a_model(fixture: WorkflowFixture) -> None:
    fixture.execution.behaviours = {0: until_cancelled, SLICES - 1: until_cancelled}
    async with fixture.workers():
        batch = await started(fixture)
        await until_only_waiting(fixture, 2)
        await batch.signal(BatchWorkflow.cancel)
        assert (await batch.result()).status == BatchStatus.CANCELLED
    assert counted(fixture) == Counter(range(SLICES))


async def test_a_slice_that_fails_permanently_ends_the_other_model_runs_of_the_model(
    fixture: WorkflowFixture,
) -> None:
    async def fails_last(request: SliceRequest) -> SliceResult:
        await until_only_waiting(fixture, 2)
        return await fails(request)

    fixture.execution.behaviours = {0: until_cancelled, SLICES - 1: fails_last}
    async with fixture.workers():
        batch = await started(fixture)
        assert (await batch.result()).status == BatchStatus.FAILED


async def test_a_slice_that_the_deadline_has_ended_is_still_unfinished_after_a_hand_over(
    fixture: WorkflowFixture,
) -> None:
    async def cut_off(request: SliceRequest) -> SliceResult:
        return SliceResult(completed=3)

    fixture.execution.behaviours[0] = cut_off
    async with fixture.workers():
        batch = await started(fixture)
        assert (await batch.result()).status == BatchStatus.EXPIRED
        [progress] = (await state_of(batch)).models
    assert progress.slices_done == SLICES - 1
    assert max(request.generation for request in fixture.execution.requests) > 0


async def test_a_model_run_whose_history_stays_long_hands_over_what_pauses_have_cancelled(
    fixture: WorkflowFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The history of a model run stays limited in this way, however often its last slices are paused and
    resumed.
    """
    monkeypatch.setattr(options, "EVENTS_BETWEEN_HAND_OVERS", 0)
    fixture.execution.behaviours[0] = until_cancelled
    async with fixture.workers():
        batch = await started(fixture)
        await until_only_waiting(fixture, 1)
        await batch.signal(BatchWorkflow.pause)
        await fixture.execution.ended(SLICES)
        await batch.signal(BatchWorkflow.resume)
        await fixture.execution.wait_for_requests(SLICES + 1)
        assert (await run_of(fixture, 1).describe()).status is WorkflowExecutionStatus.COMPLETED
        await batch.signal(BatchWorkflow.cancel)
        assert (await batch.result()).status == BatchStatus.CANCELLED
    assert counted(fixture)[0] == 2


async def test_slices_have_the_headers_of_their_batch_even_after_a_hand_over(
    fixture: WorkflowFixture,
) -> None:
    caller = Caller(headers={"x-team": "rivers"})
    async with fixture.workers():
        batch = await started(fixture, SHORT.model_copy(update={"caller": caller}))
        await batch.result()
    assert {request.generation for request in fixture.execution.requests} >= {0, 1}
    assert all(request.caller == caller for request in fixture.execution.requests)


async def test_a_model_run_that_cannot_reach_its_batch_keeps_its_slices(fixture: WorkflowFixture) -> None:
    """The batch's workflow has ended here. The batch may also have received as many signals as Temporal
    allows.
    """
    queue = "parents"
    run = (await fixture.model_run(SLICES, policy=SHORT)).model_copy(update={"progress_reports": 1})
    async with fixture.workers(), Worker(fixture.client, task_queue=queue, workflows=[LeavesItsChild]):
        await fixture.client.execute_workflow(LeavesItsChild.run, run, id="batch_1", task_queue=queue)
        result = await run_of(fixture, 1).result()
    assert result == ModelRunResult(finished=True, slices_done=SLICES, completed=10 * SLICES)
    assert counted(fixture) == Counter(range(SLICES))


@workflow.defn(sandboxed=False)
class LeavesItsChild:
    """A workflow that starts a model run and ends before it."""

    @workflow.run
    async def run(self, run: ModelRun) -> None:
        await workflow.start_child_workflow(
            ModelRunWorkflow.run,
            run,
            id=model_run_id(run.batch_id, run.safe_model),
            task_queue=CONTROL_QUEUE,
            parent_close_policy=ParentClosePolicy.ABANDON,
        )
