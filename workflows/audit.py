"""The audit of a schedule: one step."""

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from batchwright.contracts.audit import WORKFLOW, AuditActivities, AuditOrder, AuditResult
    from workflows.options import auditing


@workflow.defn(name=WORKFLOW)
class AuditWorkflow:
    @workflow.run
    async def run(self, order: AuditOrder) -> AuditResult:
        """What differs is no failure; that it could not be looked at is."""
        return await workflow.execute_activity_method(AuditActivities.audit, order, **auditing())
