"""Messages and activity of the scheduled consistency check.

The check compares database rows, workflow runs and stored files.
"""

from temporalio import activity

from batchwright.contracts.message import Message

WORKFLOW = "ConsistencyCheckWorkflow"


class ConsistencyCheckOrder(Message):
    """Start argument of a consistency check. It has no fields.

    A setting of the workers decides if the consistency check repairs the differences that it finds.
    """


class DifferenceCount(Message):
    """The number of differences of one kind that a consistency check has found.

    `left` is the number of differences that were not repaired.
    """

    found: int = 0
    left: int = 0


class ConsistencyCheckResult(Message):
    """The result of a consistency check: how much was compared, and how many differences were found."""

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
