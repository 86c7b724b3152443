"""Messages and activity of retention, which deletes expired data.

A retention run deletes each kind of data in one sweep. A sweep consists of one or more activities, one after
the other.
"""

from datetime import datetime
from enum import StrEnum

from temporalio import activity

from batchwright.contracts.message import Message

WORKFLOW = "RetentionWorkflow"


class RetentionKind(StrEnum):
    """Kinds of data that retention deletes, in the order of deletion."""

    FILES = "files"  # expired files
    UPLOADS = "uploads"  # parts of expired uploads
    BATCHES = "batches"  # objects and progress rows of ended batches
    METADATA = "metadata"  # rows of batches and uploads that ended long ago
    KEYS = "keys"  # idempotency keys
    CALLS = "calls"  # single calls whose answers are no longer kept
    WEBHOOKS = "webhooks"  # old rows of webhook deliveries, and endpoints of deleted batches
    AUDIT_LOG = "audit_log"  # old entries of the audit log
    UNFINISHED = "unfinished"  # unfinished writes of crashed processes
    ORPHANS = "orphans"  # objects that no database row refers to
    LOST = "lost"  # rows of files whose object no longer exists


EXPIRED_KINDS = [
    RetentionKind.FILES,
    RetentionKind.UPLOADS,
    RetentionKind.BATCHES,
    RetentionKind.METADATA,
    RetentionKind.KEYS,
    RetentionKind.CALLS,
    RetentionKind.WEBHOOKS,
    RetentionKind.AUDIT_LOG,
]
LITTER_KINDS = [RetentionKind.UNFINISHED, RetentionKind.ORPHANS, RetentionKind.LOST]


class SweepPosition(Message):
    """The position from which the next activity of a sweep continues. The default is the start of the sweep.

    A sweep is the deletion of all old data of one kind.
    """

    at: datetime | None = None
    tenant: str = ""
    id: str = ""  # id of a row, or key of an object


SWEEP_START = SweepPosition()


class DeletionCount(Message):
    """The number of objects or rows of one kind that were deleted, or that a dry run would have deleted.

    `bytes` is the total size of the counted objects in storage. Database rows add nothing to `bytes`.
    """

    kind: RetentionKind
    count: int = 0
    bytes: int = 0
    failures: int = 0  # failed deletions, and failed attempts to delete the whole kind


class SweepRequest(Message):
    """A request to one activity of a sweep: delete old data of one kind, starting at `position`.

    After about ten seconds the activity stops, even if data is left. `so_far` is what the earlier activities
    of the same sweep have deleted. If `dry_run` is True, the data is only counted, and nothing is deleted.
    """

    kind: RetentionKind
    now: datetime  # start of the run, so that all its turns have the same cutoffs
    position: SweepPosition = SWEEP_START
    so_far: DeletionCount
    dry_run: bool = False


class SweepResult(Message):
    """The result of one activity of a sweep: how much it has deleted, and where the sweep continues.

    A sweep is the deletion of all old data of one kind. `position` is None if the sweep is complete.
    """

    deleted: DeletionCount
    position: SweepPosition | None = None


class RetentionOrder(Message):
    """Start argument of a retention run, which deletes old data.

    When the workflow continues as new, `kinds` has the kinds of data that are left to delete. The deletion of
    the first kind continues at `position`. `deleted` and `errors` are the results so far.
    """

    kinds: list[RetentionKind] = EXPIRED_KINDS
    dry_run: bool = False
    now: datetime | None = None  # None stands for the time at which the run starts
    position: SweepPosition = SWEEP_START  # within the first of `kinds`
    deleted: list[DeletionCount] = []
    errors: list[str] = []
    max_turns: int = 500  # number of turns before continue-as-new, if the server does not suggest it earlier


class RetentionResult(Message):
    """The result of a retention run: how much of each kind was deleted, and which kinds failed.

    `errors` has one sentence for each kind of data that failed.
    """

    deleted: list[DeletionCount]
    errors: list[str] = []
    dry_run: bool = False


class RetentionActivities:
    """The declaration of the activity `sweep`, which deletes old data.

    Workflows call it without importing its code.
    The implementation is in `activities/retention/activity.py`.
    """

    @activity.defn
    async def sweep(self, request: SweepRequest) -> SweepResult:
        raise NotImplementedError
