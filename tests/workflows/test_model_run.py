"""Slices of one model: how many run at the same time, in which order, and how they are cancelled."""

import asyncio
from collections import Counter
from datetime import timedelta

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.api.sdk.v1 import WorkflowMetadata
from temporalio.client import WorkflowFailureError, WorkflowHandle
from temporalio.exceptions import ApplicationError

from batchwright.contracts.errors import Failure
from batchwright.contracts.temporal_payloads.batch import BatchPolicy, Caller
from batchwright.contracts.temporal_payloads.execution import ModelRunResult, SliceRequest, SliceResult
from batchwright.workflows import options
from batchwright.workflows.model_run import ModelRunWorkflow
from tests.workflows.fixture import POLICY, WorkflowFixture
from tests.workflows.stub_activities import FINISHED, fails, finishes, until_cancelled

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
        assert await run.result() == ModelRunResult(finished=True, completed=90)
        shown = await run.query("__temporal_workflow_metadata", result_type=WorkflowMetadata)
    assert shown.current_details == "**ended**, 9 of 9 slices done"
    assert most <= 3
    assert sorted(request.number for request in fixture.execution.requests) == list(range(9))


async def test_as_many_slices_are_outstanding_as_a_large_fleet_can_run(fixture: WorkflowFixture) -> None:
    """Each slice but the first waits until eight others run, which is four for each of two workers."""
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
        assert await run.result() == ModelRunResult(finished=True, completed=90)


async def test_a_long_history_continues_as_new_and_loses_no_slice(fixture: WorkflowFixture) -> None:
    short = policy(continue_as_new_events=20, outstanding_slices=2)
    async with fixture.workers():
        run = await fixture.start_run(await fixture.model_run(slices=12, policy=short))
        assert await run.result() == ModelRunResult(finished=True, completed=120)
        first, last = run.first_execution_run_id, (await run.describe()).run_id
    assert first != last
    assert Counter(request.number for request in fixture.execution.requests) == Counter(range(12))
    assert len({request.generation for request in fixture.execution.requests}) > 1


async def test_a_slice_that_outlasts_its_turn_is_carried_over(fixture: WorkflowFixture) -> None:
    """The slice is cancelled for continue-as-new, and the next run starts with it."""
    turns = 0

    async def once_until_cancelled(request: SliceRequest) -> SliceResult:
        nonlocal turns
        turns += 1
        return await (until_cancelled(request) if turns == 1 else finishes(request))

    fixture.execution.behaviours[0] = once_until_cancelled
    short = policy(continue_as_new_events=20, outstanding_slices=2, slice_seconds=1)
    async with fixture.workers():
        run = await fixture.start_run(await fixture.model_run(slices=8, policy=short))
        assert await run.result() == ModelRunResult(finished=True, completed=80)
    again = [request.generation for request in fixture.execution.requests if request.number == 0]
    assert again == [0, 1]


async def test_a_pause_does_not_wait_for_the_turns_before_continue_as_new(fixture: WorkflowFixture) -> None:
    stopped = asyncio.Event()

    async def stops(request: SliceRequest) -> SliceResult:
        result = await until_cancelled(request)
        stopped.set()
        return result

    fixture.execution.behaviours[0] = stops
    short = policy(continue_as_new_events=20, outstanding_slices=2, slice_seconds=3600)
    async with fixture.workers():
        run = await fixture.start_run(await fixture.model_run(slices=12, policy=short))
        while not await has_timer(run):  # the run waits for its slices before it continues as new
            pass
        await run.signal(ModelRunWorkflow.pause)
        await stopped.wait()
        fixture.execution.behaviours[0] = finishes
        await run.signal(ModelRunWorkflow.resume)
        assert await run.result() == ModelRunResult(finished=True, completed=120)


async def has_timer(run: "WorkflowHandle[ModelRunWorkflow, ModelRunResult]") -> bool:
    history = await run.fetch_history()
    return any(event.event_type == EventType.EVENT_TYPE_TIMER_STARTED for event in history.events)


async def test_slices_have_the_headers_of_their_batch_even_after_continue_as_new(
    fixture: WorkflowFixture,
) -> None:
    caller = Caller(headers={"x-team": "rivers"})
    short = policy(continue_as_new_events=20, outstanding_slices=2).model_copy(update={"caller": caller})
    async with fixture.workers():
        run = await fixture.start_run(await fixture.model_run(slices=12, policy=short))
        assert await run.result() == ModelRunResult(finished=True, completed=120)
    assert {request.generation for request in fixture.execution.requests} >= {0, 1}
    assert all(request.caller == caller for request in fixture.execution.requests)


async def test_stop_returns_the_finished_slices(fixture: WorkflowFixture) -> None:
    fixture.execution.behaviours[1] = until_cancelled
    async with fixture.workers():
        run = await fixture.start_run(await fixture.model_run(slices=2))
        await fixture.settled(slices=1)
        await run.signal(ModelRunWorkflow.stop)
        assert await run.result() == ModelRunResult(finished=False, completed=10)


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
    """The turns of a slice are retries, which write no events."""
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
        assert await run.result() == ModelRunResult(finished=True, completed=10)
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
    """The deadlock detector allows two seconds. A run schedules at most 256 slices. No worker runs them."""
    many = policy(outstanding_slices=256)
    async with fixture.workers([]):
        run = await fixture.start_run(await fixture.model_run(slices=4_000, policy=many))
        assert (await run.query(ModelRunWorkflow.progress)).slices == 4_000
        await run.signal(ModelRunWorkflow.stop)
        assert await run.result() == ModelRunResult(finished=False)


async def test_a_slice_ended_by_the_deadline_is_still_unfinished_after_continue_as_new(
    fixture: WorkflowFixture,
) -> None:
    async def cut_off(request: SliceRequest) -> SliceResult:
        return SliceResult(completed=3)

    fixture.execution.behaviours[0] = cut_off
    short = policy(continue_as_new_events=20, outstanding_slices=2)
    async with fixture.workers():
        run = await fixture.start_run(await fixture.model_run(slices=12, policy=short))
        assert await run.result() == ModelRunResult(finished=False, completed=110)
        assert (await run.query(ModelRunWorkflow.progress)).slices_done == 11
    assert max(request.generation for request in fixture.execution.requests) > 0


async def test_a_slice_that_times_out_without_a_worker_does_not_fail_the_run(
    fixture: WorkflowFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test server skips no time while an activity waits for a worker, so the window is as short as a busy
    machine allows.
    """
    monkeypatch.setattr(options, "LAST_FLUSH_MARGIN", timedelta(seconds=1))
    async with fixture.workers([]):
        run = await fixture.start_run(await fixture.model_run(slices=2, window=timedelta(seconds=15)))
        assert await run.result() == ModelRunResult(finished=False)
        events = [event.event_type async for event in run.fetch_history_events()]
    assert events.count(EventType.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT) == 2
