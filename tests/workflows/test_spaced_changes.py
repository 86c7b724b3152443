"""Many pauses and resumes of one batch. Its model runs get them at intervals that are spread over the
completion window.
"""

import asyncio
from datetime import datetime, timedelta

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowHandle

from batchwright.contracts.temporal_payloads.batch import BatchPolicy
from batchwright.contracts.terms import BatchStatus
from batchwright.workflows.batch import BatchWorkflow
from tests.workflows.fixture import POLICY, BatchHandle, WorkflowFixture, state_of
from tests.workflows.stub_activities import until_cancelled

pytestmark = pytest.mark.integration
# The interval is the window divided by the few pauses that still fit.
FEW_PAUSES: BatchPolicy = POLICY.model_copy(update={"max_change_events": 120})
ONE_PAUSE: BatchPolicy = POLICY.model_copy(update={"max_change_events": 20})


async def signals_of_run(fixture: WorkflowFixture) -> list[str]:
    """Return the names of the signals that the model run has received, in their order."""
    run = fixture.client.get_workflow_handle("batch_1/m")
    return [
        event.workflow_execution_signaled_event_attributes.signal_name
        async for event in run.fetch_history_events()
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED
    ]


async def seconds_to_end(batch: "WorkflowHandle[BatchWorkflow, object]", since: datetime) -> float:
    """Return the seconds from `since` until the batch's workflow ended, in the time of the server."""
    closed = (await batch.describe()).close_time
    assert closed is not None
    return (closed - since).total_seconds()


async def paused_twice(
    fixture: WorkflowFixture, window: timedelta = timedelta(days=1), policy: BatchPolicy = FEW_PAUSES
) -> BatchHandle:
    """Start a batch, pause it, resume it, and pause it again. Its model run gets the second
    pause much later.
    """
    fixture.execution.behaviours["m"] = until_cancelled
    batch = await fixture.start(await fixture.order(window, policy))
    await fixture.execution.wait_for_requests(2)
    await batch.signal(BatchWorkflow.pause)
    await fixture.execution.ended(2)
    await batch.signal(BatchWorkflow.resume)
    await fixture.execution.wait_for_requests(4)
    await batch.signal(BatchWorkflow.pause)
    assert (await state_of(batch)).paused
    return batch


async def test_the_first_pause_and_its_resume_reach_a_model_at_once_even_after_many_events(
    fixture: WorkflowFixture,
) -> None:
    async with fixture.workers():
        batch = await paused_twice(fixture)
        assert await signals_of_run(fixture) == ["pause", "resume"]
        await batch.signal(BatchWorkflow.cancel)
        await batch.result()


async def test_a_pause_that_is_resumed_before_its_time_never_reaches_a_model(
    fixture: WorkflowFixture,
) -> None:
    async with fixture.workers():
        batch = await paused_twice(fixture)
        for _ in range(3):
            await batch.signal(BatchWorkflow.resume)
            await batch.signal(BatchWorkflow.pause)
        await batch.signal(BatchWorkflow.resume)
        assert not (await state_of(batch)).paused
        await batch.signal(BatchWorkflow.cancel)
        await batch.result()
    assert await signals_of_run(fixture) == ["pause", "resume", "stop"]


async def test_a_pause_that_waits_reaches_a_model_in_its_time(fixture: WorkflowFixture) -> None:
    async with fixture.workers():
        batch = await paused_twice(fixture, window=timedelta(minutes=2))  # the interval is some 20 s
        while await signals_of_run(fixture) != ["pause", "resume", "pause"]:
            await asyncio.sleep(0.05)
        await batch.signal(BatchWorkflow.cancel)
        await batch.result()


async def test_a_cancel_does_not_wait_for_the_next_pause(fixture: WorkflowFixture) -> None:
    async with fixture.workers():
        batch = await paused_twice(fixture)
        cancelled_at = await fixture.environment.get_current_time()
        await batch.signal(BatchWorkflow.cancel)
        assert (await batch.result()).status == BatchStatus.CANCELLED
        assert await seconds_to_end(batch, cancelled_at) < 60
        assert await signals_of_run(fixture) == ["pause", "resume", "stop"]


async def test_the_completion_window_does_not_wait_for_the_next_pause(fixture: WorkflowFixture) -> None:
    async with fixture.workers():
        started_at = await fixture.environment.get_current_time()
        batch = await paused_twice(fixture, timedelta(seconds=30), ONE_PAUSE)
        assert (await batch.result()).status == BatchStatus.EXPIRED
        assert await seconds_to_end(batch, started_at) < 60
    assert await signals_of_run(fixture) == ["pause", "resume", "stop"]
