"""One model's slices: how many at once, in which order, and how they are given up."""

import asyncio
from collections import Counter
from datetime import timedelta

import pytest
from temporalio.api.sdk.v1 import WorkflowMetadata
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError

from batchwright.contracts.batch import BatchPolicy, Caller
from batchwright.contracts.errors import Failure
from batchwright.contracts.execution import ModelRunResult, SliceRequest, SliceResult
from tests.workflows.house import POLICY, House
from tests.workflows.steps import FINISHED, fails, finishes, until_cancelled
from workflows.model_run import ModelRunWorkflow

pytestmark = pytest.mark.integration


def policy(**changes: float) -> BatchPolicy:
    return POLICY.model_copy(update=changes)


async def test_no_more_slices_are_outstanding_than_the_policy_allows(house: House) -> None:
    at_once = most = 0

    async def counted(request: SliceRequest) -> SliceResult:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0)
        at_once -= 1
        return FINISHED

    house.execution.behaviours["m"] = counted
    async with house.workers():
        run = await house.start_run(await house.model_run(slices=9, policy=policy(outstanding_slices=3)))
        assert await run.result() == ModelRunResult(finished=True, completed=90)
        shown = await run.query("__temporal_workflow_metadata", result_type=WorkflowMetadata)
    assert shown.current_details == "**ended**, 9 of 9 slices done"
    assert most <= 3
    assert sorted(request.number for request in house.execution.requests) == list(range(9))


async def test_a_long_history_continues_as_new_and_loses_no_slice(house: House) -> None:
    short = policy(continue_as_new_events=20, outstanding_slices=2)
    async with house.workers():
        run = await house.start_run(await house.model_run(slices=12, policy=short))
        assert await run.result() == ModelRunResult(finished=True, completed=120)
        first, last = run.first_execution_run_id, (await run.describe()).run_id
    assert first != last
    assert Counter(request.number for request in house.execution.requests) == Counter(range(12))
    assert len({request.generation for request in house.execution.requests}) > 1


async def test_a_slice_that_outlasts_its_turn_is_carried_over(house: House) -> None:
    """Its first execution is given back to continue as new; the next one starts with it."""
    turns = 0

    async def once_until_cancelled(request: SliceRequest) -> SliceResult:
        nonlocal turns
        turns += 1
        return await (until_cancelled(request) if turns == 1 else finishes(request))

    house.execution.behaviours[0] = once_until_cancelled
    short = policy(continue_as_new_events=20, outstanding_slices=2, slice_seconds=1)
    async with house.workers():
        run = await house.start_run(await house.model_run(slices=8, policy=short))
        assert await run.result() == ModelRunResult(finished=True, completed=80)
    again = [request.generation for request in house.execution.requests if request.number == 0]
    assert again == [0, 1]


async def test_slices_know_the_headers_of_their_batch_also_after_continuing_as_new(house: House) -> None:
    caller = Caller(headers={"x-team": "rivers"})
    short = policy(continue_as_new_events=20, outstanding_slices=2).model_copy(update={"caller": caller})
    async with house.workers():
        run = await house.start_run(await house.model_run(slices=12, policy=short))
        assert await run.result() == ModelRunResult(finished=True, completed=120)
    assert {request.generation for request in house.execution.requests} >= {0, 1}
    assert all(request.caller == caller for request in house.execution.requests)


async def test_stop_ends_with_what_finished(house: House) -> None:
    house.execution.behaviours[1] = until_cancelled
    async with house.workers():
        run = await house.start_run(await house.model_run(slices=2))
        await house.settled(slices=1)
        await run.signal(ModelRunWorkflow.stop)
        assert await run.result() == ModelRunResult(finished=False, completed=10)


async def test_stop_does_not_wait_for_a_worker_that_never_answers(house: House) -> None:
    silent = asyncio.Event()

    async def ignores_everything(request: SliceRequest) -> SliceResult:
        await silent.wait()
        return FINISHED

    house.execution.behaviours["m"] = ignores_everything
    async with house.workers():
        run = await house.start_run(await house.model_run(slices=2))
        await house.execution.asked(2)
        await run.signal(ModelRunWorkflow.stop)
        assert await run.result() == ModelRunResult(finished=False)
        silent.set()


async def test_a_slice_failing_for_good_fails_the_run_and_names_the_cause(house: House) -> None:
    house.execution.behaviours = {"m": until_cancelled, 1: fails}
    async with house.workers():
        run = await house.start_run(await house.model_run(slices=3))
        with pytest.raises(WorkflowFailureError) as failed:
            await run.result()
    cause = failed.value.cause
    assert isinstance(cause, ApplicationError)
    assert (cause.type, cause.message) == (Failure.MODEL_RUN_FAILED, "The plan is damaged.")


async def test_turns_cost_no_history(house: House) -> None:
    """A slice goes through its turns by retries, which write no events."""
    turns = 0

    async def third_turn(request: SliceRequest) -> SliceResult:
        nonlocal turns
        turns += 1
        if turns < 3:
            raise ApplicationError(
                "Turn over.", type=Failure.TURN_OVER, next_retry_delay=timedelta(milliseconds=1)
            )
        return FINISHED

    house.execution.behaviours["m"] = third_turn
    async with house.workers():
        run = await house.start_run(await house.model_run(slices=1))
        assert await run.result() == ModelRunResult(finished=True, completed=10)
        assert len((await run.fetch_history()).events) < 12
    assert turns == 3


async def test_a_run_paused_twice_starts_its_slices_anew_each_time(house: House) -> None:
    house.execution.behaviours["m"] = until_cancelled
    async with house.workers():
        run = await house.start_run(await house.model_run(slices=1))
        for asked in (1, 2):
            await house.execution.asked(asked)
            await run.signal(ModelRunWorkflow.pause)
            await house.execution.ended(asked)
            await run.signal(ModelRunWorkflow.resume)
        await house.execution.asked(3)
        await run.signal(ModelRunWorkflow.stop)
        await run.result()
    assert [request.generation for request in house.execution.requests] == [0, 1, 2]


async def test_scheduling_and_giving_up_hundreds_of_slices_stays_within_one_activation(house: House) -> None:
    """The deadlock detector allows two seconds; no worker takes these slices."""
    many = policy(outstanding_slices=500)
    async with house.workers([]):
        run = await house.start_run(await house.model_run(slices=4_000, policy=many))
        assert (await run.query(ModelRunWorkflow.progress)).slices == 4_000
        await run.signal(ModelRunWorkflow.stop)
        assert await run.result() == ModelRunResult(finished=False)
