"""Messages and activity of the scheduled audit, which compares rows, workflow runs and files."""

from temporalio import activity

from batchwright.contracts.message import Message

WORKFLOW = "AuditWorkflow"


class AuditOrder(Message):
    """Start argument of an audit. It has no fields.

    A setting of the workers decides if the audit repairs the differences that it finds.
    """


class AuditCount(Message):
    """Number of differences of one kind that an audit found, and of those that are left unrepaired."""

    found: int = 0
    left: int = 0


class AuditResult(Message):
    """Result of an audit: how much it compared, and the differences that it found."""

    rows: int  # live batches that were compared
    runs: int
    files: int
    counts: dict[str, AuditCount]  # by kind of difference


class AuditActivities:
    """Declares the activity `audit`, so that workflows can call it without importing its implementation.

    The implementation is in `activities/audit/activity.py`.
    """

    @activity.defn
    async def audit(self, order: AuditOrder) -> AuditResult:
        raise NotImplementedError
