"""Messages and activity of the scheduled consistency check, which compares rows, workflow runs and files."""

from temporalio import activity

from batchwright.contracts.message import Message

WORKFLOW = "ConsistencyCheckWorkflow"


class ConsistencyCheckOrder(Message):
    """Start argument of a consistency check. It has no fields.

    A setting of the workers decides if the consistency check repairs the differences that it finds.
    """


class DifferenceCount(Message):
    """Number of differences of one kind: `found` by a consistency check, and `left` without a repair."""

    found: int = 0
    left: int = 0


class ConsistencyCheckResult(Message):
    """Result of a consistency check: how much it compared, and which differences it found."""

    rows: int  # live batches that were compared
    runs: int
    files: int
    counts: dict[str, DifferenceCount]  # by kind of difference


class ConsistencyCheckActivities:
    """The declaration of the activity `check_consistency`. Workflows call it without importing its code.

    The implementation is in `activities/consistency/activity.py`.
    """

    @activity.defn
    async def check_consistency(self, order: ConsistencyCheckOrder) -> ConsistencyCheckResult:
        raise NotImplementedError
