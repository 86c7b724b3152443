"""Batches that start later: those with a `start_at`, and those of schedules."""

from datetime import timedelta

import pytest
from temporalio.exceptions import ApplicationError

from batchwright.contracts.errors import Failure
from batchwright.contracts.temporal_payloads.batch import SCHEDULED
from batchwright.contracts.temporal_payloads.batch_schedules import (
    RunRecord,
    ScheduledBatch,
    ScheduledBatchResult,
    ScheduleRef,
)
from batchwright.contracts.terms import BatchStatus
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


async def test_a_batch_that_starts_later_inserts_its_row_before_its_start(fixture: WorkflowFixture) -> None:
    order = await fixture.later()
    async with fixture.workers():
        batch = await fixture.start(order)
        await batch.signal(BatchWorkflow.cancel)
        await batch.result()
    assert fixture.lifecycle.inserted == [order.batch_id]


async def test_a_batch_starts_at_its_time_although_its_row_cannot_be_inserted(
    fixture: WorkflowFixture,
) -> None:
    fixture.lifecycle.insert_error = ApplicationError("no database", type="DatabaseUnavailable")
    order = await fixture.later(delay=timedelta(seconds=1))
    async with fixture.workers():
        batch = await fixture.start(order)
        assert (await batch.result()).status == BatchStatus.COMPLETED
    assert fixture.lifecycle.inserted == []


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
    assert fixture.scheduling.records == [RunRecord(run=request, batch=fixture.scheduling.result)]
    schedule = ScheduleRef(tenant="acme", schedule_id="schedule_1")
    assert (request.schedule, request.run_id) == (schedule, f"{run.id}/{run.first_execution_run_id}")


async def test_two_runs_with_one_workflow_id_are_two_runs(fixture: WorkflowFixture) -> None:
    """If a schedule is triggered twice within one second, Temporal gives both runs the same workflow id."""
    fixture.scheduling.result = ScheduledBatch(code="file_not_found", refusal="The input file was deleted.")
    async with fixture.workers():
        for _ in range(2):
            await (await fixture.start_scheduled()).result()
    assert len({request.run_id for request in fixture.scheduling.requests}) == 2


async def test_a_batch_that_may_not_be_created_ends_the_workflow_with_the_reason(
    fixture: WorkflowFixture,
) -> None:
    fixture.scheduling.result = ScheduledBatch(code="file_not_found", refusal="The input file was deleted.")
    async with fixture.workers():
        result = await (await fixture.start_scheduled()).result()
    assert result == ScheduledBatchResult(refusal="The input file was deleted.")
    assert [record.batch for record in fixture.scheduling.records] == [fixture.scheduling.result]
    assert not fixture.ingestion.started.is_set()


async def test_an_unavailable_database_delays_the_batch(fixture: WorkflowFixture) -> None:
    fixture.scheduling.result = ScheduledBatch(order=await fixture.order())
    fixture.scheduling.failures = [ApplicationError("away", type=Failure.DATABASE_UNAVAILABLE)] * 3
    async with fixture.workers():
        assert (await (await fixture.start_scheduled()).result()).status == BatchStatus.COMPLETED
    assert len(fixture.scheduling.requests) == 4


async def test_a_batch_that_cannot_be_admitted_for_an_hour_is_a_run_with_the_reason(
    fixture: WorkflowFixture,
) -> None:
    fixture.scheduling.failures = [ApplicationError("away", type=Failure.DATABASE_UNAVAILABLE)] * 1_000
    async with fixture.workers():
        result = await (await fixture.start_scheduled()).result()
    (record,) = fixture.scheduling.records
    assert (record.batch.code, record.batch.order) == ("system_error", None)
    assert "the database is unavailable" in record.batch.refusal
    assert result == ScheduledBatchResult(refusal=record.batch.refusal)


async def test_a_batch_has_a_workflow_before_it_has_a_row(fixture: WorkflowFixture) -> None:
    """If the row came first, a client that sees the row could not cancel the batch yet."""
    fixture.scheduling.result = ScheduledBatch(order=await fixture.order())
    async with fixture.workers():
        run = await fixture.start_scheduled()
        await run.result()
        history = await run.fetch_history()
    kinds = [event.WhichOneof("attributes") for event in history.events]
    recorded = [
        number
        for number, event in enumerate(history.events)
        if event.activity_task_scheduled_event_attributes.activity_type.name == "record_scheduled_run"
    ]
    assert kinds.index("child_workflow_execution_started_event_attributes") < recorded[0]


async def test_a_cancel_of_the_workflow_cancels_its_batch_and_waits_for_it(fixture: WorkflowFixture) -> None:
    """The overlap policy `cancel_other` of a schedule sends this cancel."""
    fixture.scheduling.result = ScheduledBatch(order=await fixture.order())
    fixture.execution.behaviours["m"] = until_cancelled
    async with fixture.workers():
        run = await fixture.start_scheduled()
        await fixture.execution.wait_for_requests(1)
        await run.cancel()
        expected = ScheduledBatchResult(batch_id="batch_1", status=BatchStatus.CANCELLED)
        assert await run.result() == expected
    assert fixture.scheduling.cancels == ["batch_1"]


async def test_a_run_whose_batch_was_started_before_a_reset_waits_for_it_and_cancels_it(
    fixture: WorkflowFixture,
) -> None:
    order = await fixture.order()
    fixture.scheduling.result, fixture.scheduling.polls_until_end = ScheduledBatch(order=order), 3
    fixture.execution.behaviours["m"] = until_cancelled
    async with fixture.workers():
        batch = await fixture.start(order)
        await fixture.execution.wait_for_requests(1)
        run = await fixture.start_scheduled()
        await fixture.scheduling.started.wait()
        await run.cancel()
        assert (await batch.result()).status == BatchStatus.CANCELLED
        expected = ScheduledBatchResult(batch_id="batch_1", status=BatchStatus.CANCELLED)
        assert await run.result() == expected


async def test_a_cancel_while_the_batch_is_created_cancels_it_too(fixture: WorkflowFixture) -> None:
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
