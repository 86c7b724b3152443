"""The consistency check workflow, which a schedule starts. It runs one activity."""

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from batchwright.contracts.temporal_payloads.consistency import (
        WORKFLOW,
        ConsistencyCheckActivities,
        ConsistencyCheckOrder,
        ConsistencyCheckResult,
    )
    from batchwright.workflows.options import consistency_check_options


@workflow.defn(name=WORKFLOW)
class ConsistencyCheckWorkflow:
    @workflow.run
    async def run(self, order: ConsistencyCheckOrder) -> ConsistencyCheckResult:
        """Compare the database with Temporal and storage, and return the result.

        The workflow run succeeds even if differences are found.
        """
        return await workflow.execute_activity_method(
            ConsistencyCheckActivities.check_consistency, order, **consistency_check_options()
        )
