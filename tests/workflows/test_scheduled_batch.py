"""Batches that start later: those with a `start_at`, and those of schedules."""

from datetime import timedelta

import pytest
from temporalio.exceptions import ApplicationError

from batchwright.contracts.batch import SCHEDULED
from batchwright.contracts.batch_schedules import ScheduledBatch, ScheduledBatchResult, ScheduleRef
from batchwright.contracts.errors import Failure
from batchwright.contracts.openai import BatchStatus
from batchwright.workflows.batch import BatchWorkflow
from tests.workflows.fixture import WorkflowFixture, state_of
from tests.workflows.stub_activities import until_cancelled

pytestmark = pytest.mark.integration


async def test_a_batch_starts_at_its_time_even_if_it_gets_signals_before(fixture: WorkflowFixture) -> None:
    order = await fixture.later()
    async with fixture.workers():
        batch = await fixture.start(order)
        for signal in (BatchWorkflow.pause, BatchWorkflow.resume):
            await batch.signal(signal)
        state = await state_of(batch)
        assert (state.status, [each.reason for each in state.waiting]) == (
            BatchStatus.VALIDATING,
            [SCHEDULED],
        )
        assert not fixture.ingestion.started.is_set()
        assert (await batch.result()).status == BatchStatus.COMPLETED
        assert await fixture.environment.get_current_time() >= order.starts_at
        assert (await state_of(batch)).waiting == []


async def test_a_batch_that_is_cancelled_before_its_start_sends_nothing(fixture: WorkflowFixture) -> None:
    order = await fixture.later()
    async with fixture.workers():
        batch = await fixture.start(order)
        await batch.signal(BatchWorkflow.cancel)
        assert (await batch.result()).status == BatchStatus.CANCELLED
        ended_at = (await batch.describe()).close_time
        assert ended_at is not None
        assert ended_at < order.starts_at
    assert not fixture.ingestion.started.is_set()
    assert fixture.execution.requests == []
    assert [request.status for request in fixture.lifecycle.requests] == [BatchStatus.CANCELLED]


async def test_a_batch_that_nobody_worked_on_before_its_start_begins_at_once(
    fixture: WorkflowFixture,
) -> None:
    order = await fixture.later(delay=timedelta(0))
    async with fixture.workers():
        batch = await fixture.start(order)
        assert (await batch.result()).status == BatchStatus.COMPLETED


async def test_the_workflow_of_a_schedule_creates_a_batch_and_waits_for_its_end(
    fixture: WorkflowFixture,
) -> None:
    fixture.scheduling.result = ScheduledBatch(order=await fixture.order())
    fixture.finalization.released.clear()
    async with fixture.workers():
        run = await fixture.start_scheduled()
        await fixture.finalization.started.wait()
        assert (await run.describe()).close_time is None
        fixture.finalization.released.set()
        expected = ScheduledBatchResult(batch_id="batch_1", status=BatchStatus.COMPLETED)
        assert await run.result() == expected
    (request,) = fixture.scheduling.requests
    schedule = ScheduleRef(tenant="acme", schedule_id="schedule_1")
    assert (request.schedule, request.run_id) == (schedule, f"{run.id}/{run.first_execution_run_id}")


async def test_two_runs_with_one_workflow_id_are_two_runs(fixture: WorkflowFixture) -> None:
    """Temporal gives two triggers within one second the same workflow id."""
    fixture.scheduling.result = ScheduledBatch(refusal="The input file was deleted.")
    async with fixture.workers():
        for _ in range(2):
            await (await fixture.start_scheduled()).result()
    assert len({request.run_id for request in fixture.scheduling.requests}) == 2


async def test_a_batch_that_may_not_be_created_ends_the_workflow_with_the_reason(
    fixture: WorkflowFixture,
) -> None:
    fixture.scheduling.result = ScheduledBatch(refusal="The input file was deleted.")
    async with fixture.workers():
        result = await (await fixture.start_scheduled()).result()
    assert result == ScheduledBatchResult(refusal="The input file was deleted.")
    assert not fixture.ingestion.started.is_set()


async def test_an_unavailable_database_delays_the_batch(fixture: WorkflowFixture) -> None:
    fixture.scheduling.result = ScheduledBatch(order=await fixture.order())
    fixture.scheduling.failures = [ApplicationError("away", type=Failure.DATABASE_UNAVAILABLE)] * 3
    async with fixture.workers():
        assert (await (await fixture.start_scheduled()).result()).status == BatchStatus.COMPLETED
    assert len(fixture.scheduling.requests) == 4


async def test_a_cancel_of_the_workflow_cancels_its_batch_and_waits_for_it(fixture: WorkflowFixture) -> None:
    """The overlap policy `cancel_other` sends this cancel."""
    fixture.scheduling.result = ScheduledBatch(order=await fixture.order())
    fixture.execution.behaviours["m"] = until_cancelled
    async with fixture.workers():
        run = await fixture.start_scheduled()
        await fixture.execution.wait_for_requests(1)
        await run.cancel()
        expected = ScheduledBatchResult(batch_id="batch_1", status=BatchStatus.CANCELLED)
        assert await run.result() == expected


async def test_a_cancel_while_the_batch_is_created_cancels_it_too(fixture: WorkflowFixture) -> None:
    """The batch already has a row, so it needs a workflow that ends it."""
    fixture.scheduling.result = ScheduledBatch(order=await fixture.order())
    fixture.scheduling.released.clear()
    fixture.ingestion.released.clear()
    async with fixture.workers():
        run = await fixture.start_scheduled()
        await fixture.scheduling.started.wait()
        await run.cancel()
        fixture.scheduling.released.set()
        assert (await run.result()).status == BatchStatus.CANCELLED
    assert fixture.execution.requests == []


async def test_the_batch_continues_if_its_workflow_is_terminated(fixture: WorkflowFixture) -> None:
    fixture.scheduling.result = ScheduledBatch(order=await fixture.order())
    fixture.finalization.released.clear()
    async with fixture.workers():
        run = await fixture.start_scheduled()
        await fixture.finalization.started.wait()
        await run.terminate()
        fixture.finalization.released.set()
        batch = fixture.client.get_workflow_handle_for(BatchWorkflow.run, "batch_1")
        assert (await batch.result()).status == BatchStatus.COMPLETED
