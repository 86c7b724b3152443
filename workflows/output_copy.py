"""The workflow that copies the files of an ended batch to its output location, with retries for 72 h."""

from temporalio import workflow
from temporalio.exceptions import ActivityError

with workflow.unsafe.imports_passed_through():
    from batchwright.contracts.temporal_payloads.batch import BatchOrder
    from batchwright.contracts.temporal_payloads.output_copies import (
        WORKFLOW,
        OutputCopyActivities,
        OutputCopyState,
    )
    from batchwright.workflows.failures import cause_of
    from batchwright.workflows.options import output_copy_end_options, output_copy_options


@workflow.defn(name=WORKFLOW)
class OutputCopyWorkflow:
    @workflow.run
    async def run(self, order: BatchOrder) -> OutputCopyState:
        """Copy the files, and return the final state.

        If the copy takes longer than 72 h, or an operator cancels the workflow, the state becomes `failed`.
        """
        try:
            return await workflow.execute_activity_method(
                OutputCopyActivities.copy_output, order, **output_copy_options(order)
            )
        except ActivityError as error:
            fields = {"batch_id": order.batch_id, "error": cause_of(error)}
            workflow.logger.error("files not copied to the output location", extra=fields)
            return await workflow.execute_activity_method(
                OutputCopyActivities.give_up_output_copy, order, **output_copy_end_options(order)
            )
