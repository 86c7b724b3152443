"""The audit that a schedule starts: its messages, and the activity it declares."""

from temporalio import activity

from batchwright.contracts.message import Message

WORKFLOW = "AuditWorkflow"


class AuditOrder(Message):
    """Everything is compared; whether anything is mended is the setting of the worker that does it."""


class AuditCount(Message):
    """Of one kind of difference: how many there were, and how many of them are still there."""

    found: int = 0
    left: int = 0


class AuditResult(Message):
    rows: int  # live ones that were looked at
    runs: int
    files: int
    counts: dict[str, AuditCount]  # by kind


class AuditActivities:
    """Declared here, implemented in `activities/auditing.py`; workflows see only this."""

    @activity.defn
    async def audit(self, order: AuditOrder) -> AuditResult:
        raise NotImplementedError
