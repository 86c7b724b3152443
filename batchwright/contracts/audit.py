"""Messages and activity of the scheduled audit, which compares rows, workflow runs and files."""

from temporalio import activity

from batchwright.contracts.message import Message

WORKFLOW = "AuditWorkflow"


class AuditOrder(Message):
    """Request for an audit. A setting of the worker decides whether the audit repairs differences."""


class AuditCount(Message):
    """Differences of one kind: how many an audit found, and how many it left unrepaired."""

    found: int = 0
    left: int = 0


class AuditResult(Message):
    rows: int  # live batches that were compared
    runs: int
    files: int
    counts: dict[str, AuditCount]  # by kind


class AuditActivities:
    """Declaration of the activity, so that workflows can call it without importing its implementation.

    It is implemented in `activities/audit/activity.py`.
    """

    @activity.defn
    async def audit(self, order: AuditOrder) -> AuditResult:
        raise NotImplementedError
