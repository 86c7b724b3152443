"""The workflow that a schedule starts when it is due: it creates a batch and waits for its end."""

import asyncio

from temporalio import workflow
from temporalio.common import SearchAttributeKey

with workflow.unsafe.imports_passed_through():
    from batchwright.contracts.batch_schedules import (
        WORKFLOW,
        ScheduleActivities,
        ScheduledBatchResult,
        ScheduledRun,
        ScheduleRef,
    )
    from batchwright.workflows.batch import BatchWorkflow
    from batchwright.workflows.options import batch_options, scheduled_batch_options

_SCHEDULED_AT = SearchAttributeKey.for_datetime("TemporalScheduledStartTime")  # set by Temporal


@workflow.defn(name=WORKFLOW)
class ScheduledBatchWorkflow:
    """Runs as long as its batch, so that the overlap policy of the schedule is about batches."""

    @workflow.init
    def __init__(self, schedule: ScheduleRef) -> None:
        del schedule
        self._cancel_requested = False

    @workflow.run
    async def run(self, schedule: ScheduleRef) -> ScheduledBatchResult:
        """Create the batch and wait for its end. Return its status, or why no batch was created.

        A cancel, for example by the overlap policy `cancel_other`, cancels the batch. The workflow ends when
        the batch has ended.
        """
        work = asyncio.create_task(self._run_batch(schedule))
        while True:
            try:
                return await asyncio.shield(work)
            except asyncio.CancelledError:
                if work.done():
                    raise
                self._cancel_requested = True

    async def _run_batch(self, schedule: ScheduleRef) -> ScheduledBatchResult:
        info = workflow.info()
        scheduled_at = info.typed_search_attributes.get(_SCHEDULED_AT) or info.start_time
        # The workflow id contains the time in whole seconds, so two triggers in one second have the same id.
        # The id of the first run tells them apart, and stays if an operator resets the workflow.
        run_id = f"{info.workflow_id}/{info.first_execution_run_id}"
        created = await workflow.execute_activity_method(
            ScheduleActivities.create_scheduled_batch,
            ScheduledRun(schedule=schedule, run_id=run_id, scheduled_at=scheduled_at),
            **scheduled_batch_options(schedule),
        )
        order = created.order
        if order is None:
            workflow.set_current_details(f"No batch was created: {created.refusal}")
            return ScheduledBatchResult(refusal=created.refusal)
        workflow.set_current_details(f"batch `{order.batch_id}`")
        batch = await workflow.start_child_workflow(BatchWorkflow.run, order, **batch_options(order))
        await workflow.wait_condition(lambda: batch.done() or self._cancel_requested)
        if not batch.done():
            batch.cancel()
        result = await batch
        return ScheduledBatchResult(batch_id=order.batch_id, status=result.status)
