"""The workflow that a schedule starts when it is due: it creates a batch and waits for its end."""

import asyncio
import contextlib

from temporalio import workflow
from temporalio.common import SearchAttributeKey
from temporalio.exceptions import ActivityError, FailureError, WorkflowAlreadyStartedError

with workflow.unsafe.imports_passed_through():
    from batchwright.contracts.temporal_payloads.batch import BatchOrder
    from batchwright.contracts.temporal_payloads.batch_schedules import (
        WORKFLOW,
        RunRecord,
        ScheduleActivities,
        ScheduledBatch,
        ScheduledBatchResult,
        ScheduledRun,
        ScheduleRef,
    )
    from batchwright.contracts.terms import BatchStatus
    from batchwright.workflows.batch import BatchWorkflow
    from batchwright.workflows.failures import cause_of, sentence_for_tenant
    from batchwright.workflows.options import batch_options, scheduled_batch_options, scheduled_run_options

_SCHEDULED_AT = SearchAttributeKey.for_datetime("TemporalScheduledStartTime")  # set by Temporal


@workflow.defn(name=WORKFLOW)
class ScheduledBatchWorkflow:
    """The workflow that creates the batch of a schedule, and waits until the batch ends.

    This workflow runs as long as the batch. So Temporal's overlap policy of the schedule decides what happens
    if the next batch is due before this batch has ended.
    """

    @workflow.init
    def __init__(self, schedule: ScheduleRef) -> None:
        self._schedule = schedule
        self._cancel_requested = False

    @workflow.run
    async def run(self, schedule: ScheduleRef) -> ScheduledBatchResult:
        """Create the batch and wait for its end. Return its status, or why no batch was created.

        If the workflow is cancelled, for example by the overlap policy `cancel_other`, the batch is
        cancelled. The workflow ends when the batch has ended.
        """
        del schedule
        work = asyncio.create_task(self._run_batch())
        while True:
            try:
                return await asyncio.shield(work)
            except asyncio.CancelledError:
                if work.done():
                    raise
                self._cancel_requested = True

    async def _run_batch(self) -> ScheduledBatchResult:
        info = workflow.info()
        # The workflow id contains the time in whole seconds, so two triggers in one second have the same id.
        # The id of the first run tells them apart, and stays if an operator resets the workflow.
        run_id = f"{info.workflow_id}/{info.first_execution_run_id}"
        scheduled_at = info.typed_search_attributes.get(_SCHEDULED_AT) or info.start_time
        run = ScheduledRun(schedule=self._schedule, run_id=run_id, scheduled_at=scheduled_at)
        batch = await self._admit(run)
        order = batch.order
        if order is None:
            workflow.set_current_details(f"No batch was created: {batch.refusal}")
            await self._record(run, batch)
            return ScheduledBatchResult(refusal=batch.refusal)
        workflow.set_current_details(f"batch `{order.batch_id}`")
        # The row follows the workflow, as for all batches: a row without a workflow could not be cancelled.
        end = await self._start(order)
        await self._record(run, batch)
        await workflow.wait_condition(lambda: end.done() or self._cancel_requested)
        if not end.done():
            await self._cancel(order)
        return ScheduledBatchResult(batch_id=order.batch_id, status=await end)

    async def _admit(self, run: ScheduledRun) -> ScheduledBatch:
        try:
            return await workflow.execute_activity_method(
                ScheduleActivities.admit_scheduled_batch, run, **scheduled_batch_options(self._schedule)
            )
        except ActivityError as error:
            workflow.logger.error("scheduled batch not created", extra={"error": cause_of(error)})
            return ScheduledBatch(
                code="system_error", refusal=f"The batch could not be created: {sentence_for_tenant(error)}"
            )

    async def _record(self, run: ScheduledRun, batch: ScheduledBatch) -> None:
        await workflow.execute_activity_method(
            ScheduleActivities.record_scheduled_run,
            RunRecord(run=run, batch=batch),
            **scheduled_run_options(self._schedule, "record the run"),
        )

    async def _start(self, order: BatchOrder) -> asyncio.Task[BatchStatus | None]:
        """Start the workflow of the batch. Return a task that waits for its end and returns its status."""
        try:
            batch = await workflow.start_child_workflow(BatchWorkflow.run, order, **batch_options(order))
        except WorkflowAlreadyStartedError:  # before an operator has reset this workflow
            return workflow.start_activity_method(
                ScheduleActivities.end_of_scheduled_batch,
                order,
                **scheduled_run_options(self._schedule, "wait for the end of the batch"),
            )

        async def end() -> BatchStatus | None:
            return (await batch).status

        return asyncio.create_task(end())

    async def _cancel(self, order: BatchOrder) -> None:
        batch = workflow.get_external_workflow_handle_for(BatchWorkflow.run, order.batch_id)
        with contextlib.suppress(FailureError):  # the batch has ended meanwhile
            await batch.signal(BatchWorkflow.cancel)
        await workflow.execute_activity_method(
            ScheduleActivities.record_scheduled_cancel,
            order,
            **scheduled_run_options(self._schedule, "show that the batch is being cancelled"),
        )
