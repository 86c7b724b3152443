"""Slices of one model: how many run at the same time, in which order, and how they are cancelled."""

import asyncio
from datetime import timedelta

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.api.sdk.v1 import WorkflowMetadata
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError

from batchwright.contracts.errors import Failure
from batchwright.contracts.temporal_payloads.batch import BatchPolicy
from batchwright.contracts.temporal_payloads.execution import ModelRunResult, SliceRequest, SliceResult
from batchwright.workflows import options
from batchwright.workflows.model_run import ModelRunWorkflow
from tests.workflows.fixture import POLICY, WorkflowFixture
from tests.workflows.stub_activities import FINISHED, fails, until_cancelled

pytestmark = pytest.mark.integration


def policy(**changes: float) -> BatchPolicy:
    return POLICY.model_copy(update=changes)


async def test_no_more_slices_are_outstanding_than_the_policy_allows(fixture: WorkflowFixture) -> None:
    at_once = most = 0

    async def counted(request: SliceRequest) -> SliceResult:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0)
        at_once -= 1
        return FINISHED

    fixture.execution.behaviours["m"] = counted
    async with fixture.workers():
        run = await fixture.start_run(await fixture.model_run(slices=9, policy=policy(outstanding_slices=3)))
        assert await run.result() == ModelRunResult(finished=True, slices_done=9, completed=90)
        shown = await run.query("__temporal_workflow_metadata", result_type=WorkflowMetadata)
    assert shown.current_details == "**ended**, 9 of 9 slices done"
    assert most <= 3
    assert sorted(request.number for request in fixture.execution.requests) == list(range(9))


async def test_as_many_slices_are_outstanding_as_a_large_fleet_can_run(fixture: WorkflowFixture) -> None:
    """Each slice except the first one waits until eight others run. This is four slices for each of two
    workers.
    """
    running = 0
    are_eight = asyncio.Event()

    async def counted(request: SliceRequest) -> SliceResult:
        nonlocal running
        if request.number:
            running += 1
            if running == 8:
                are_eight.set()
            await are_eight.wait()
        return FINISHED.model_copy(update={"workers": 2})

    fixture.execution.behaviours["m"] = counted
    async with fixture.workers():
        run = await fixture.start_run(await fixture.model_run(slices=9, policy=policy(outstanding_slices=2)))
        assert await run.result() == ModelRunResult(finished=True, slices_done=9, completed=90)


async def test_stop_returns_the_finished_slices(fixture: WorkflowFixture) -> None:
    fixture.execution.behaviours[1] = until_cancelled
    async with fixture.workers():
        run = await fixture.start_run(await fixture.model_run(slices=2))
        await fixture.settled(slices=1)
        await run.signal(ModelRunWorkflow.stop)
        assert await run.result() == ModelRunResult(finished=False, slices_done=1, completed=10)


async def test_stop_does_not_wait_for_a_worker_that_never_answers(fixture: WorkflowFixture) -> None:
    silent = asyncio.Event()

    async def ignores_everything(request: SliceRequest) -> SliceResult:
        await silent.wait()
        return FINISHED

    fixture.execution.behaviours["m"] = ignores_everything
    async with fixture.workers():
        run = await fixture.start_run(await fixture.model_run(slices=2))
        await fixture.execution.wait_for_requests(2)
        await run.signal(ModelRunWorkflow.stop)
        assert await run.result() == ModelRunResult(finished=False)
        silent.set()


async def test_a_permanently_failed_slice_fails_the_run_and_names_the_cause(fixture: WorkflowFixture) -> None:
    fixture.execution.behaviours = {"m": until_cancelled, 1: fails}
    async with fixture.workers():
        run = await fixture.start_run(await fixture.model_run(slices=3))
        with pytest.raises(WorkflowFailureError) as failed:
            await run.result()
    cause = failed.value.cause
    assert isinstance(cause, ApplicationError)
    assert (cause.type, cause.message) == (Failure.MODEL_RUN_FAILED, "the prepared input is damaged.")


async def test_turns_add_no_history_events(fixture: WorkflowFixture) -> None:
    """When a slice is interrupted and runs again, Temporal retries its activity. A retry adds no event to the
    history.
    """
    turns = 0

    async def third_turn(request: SliceRequest) -> SliceResult:
        nonlocal turns
        turns += 1
        if turns < 3:
            raise ApplicationError(
                "Turn over.", type=Failure.TURN_OVER, next_retry_delay=timedelta(milliseconds=1)
            )
        return FINISHED

    fixture.execution.behaviours["m"] = third_turn
    async with fixture.workers():
        run = await fixture.start_run(await fixture.model_run(slices=1))
        assert await run.result() == ModelRunResult(finished=True, slices_done=1, completed=10)
        assert len((await run.fetch_history()).events) < 12
    assert turns == 3


async def test_a_run_paused_twice_starts_its_slices_again_each_time(fixture: WorkflowFixture) -> None:
    fixture.execution.behaviours["m"] = until_cancelled
    async with fixture.workers():
        run = await fixture.start_run(await fixture.model_run(slices=1))
        for count in (1, 2):
            await fixture.execution.wait_for_requests(count)
            await run.signal(ModelRunWorkflow.pause)
            await fixture.execution.ended(count)
            await run.signal(ModelRunWorkflow.resume)
        await fixture.execution.wait_for_requests(3)
        await run.signal(ModelRunWorkflow.stop)
        await run.result()
    assert [request.generation for request in fixture.execution.requests] == [0, 1, 2]


async def test_scheduling_and_cancelling_hundreds_of_slices_stays_within_one_activation(
    fixture: WorkflowFixture,
) -> None:
    """The SDK's deadlock detector allows two seconds. A model run schedules at most 256 slices. No worker
    runs them here.
    """
    many = policy(outstanding_slices=256)
    async with fixture.workers([]):
        run = await fixture.start_run(await fixture.model_run(slices=4_000, policy=many))
        assert (await run.query(ModelRunWorkflow.progress)).slices == 4_000
        await run.signal(ModelRunWorkflow.stop)
        assert await run.result() == ModelRunResult(finished=False)


async def test_a_slice_that_times_out_without_a_worker_does_not_fail_the_run(
    fixture: WorkflowFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test server skips no time while an activity waits for a worker. So the completion window is as
    short as a busy machine allows.
    """
    monkeypatch.setattr(options, "LAST_FLUSH_MARGIN", timedelta(seconds=1))
    async with fixture.workers([]):
        run = await fixture.start_run(await fixture.model_run(slices=2, window=timedelta(seconds=15)))
        assert await run.result() == ModelRunResult(finished=False)
        events = [event.event_type async for event in run.fetch_history_events()]
    assert events.count(EventType.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT) == 2
