"""The audit workflow, which a schedule starts. It runs one activity."""

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from batchwright.contracts.audit import WORKFLOW, AuditActivities, AuditOrder, AuditResult
    from batchwright.workflows.options import audit_options


@workflow.defn(name=WORKFLOW)
class AuditWorkflow:
    @workflow.run
    async def run(self, order: AuditOrder) -> AuditResult:
        """Run the audit activity and return its result. Found differences are not a failure of the run."""
        return await workflow.execute_activity_method(AuditActivities.audit, order, **audit_options())
