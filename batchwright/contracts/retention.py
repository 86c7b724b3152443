"""Retention: its kinds, its messages, and the activity it declares."""

from datetime import datetime
from enum import StrEnum

from temporalio import activity

from batchwright.contracts.message import Message

WORKFLOW = "RetentionWorkflow"


class Kind(StrEnum):
    """What is deleted, in the order of a run."""

    FILES = "files"  # past their life
    UPLOADS = "uploads"  # parts of those past their time
    BATCHES = "batches"  # what ended batches left in storage, and of their progress
    METADATA = "metadata"  # rows of batches and uploads that ended long ago
    KEYS = "keys"  # idempotency keys
    UNFINISHED = "unfinished"  # what writers that died left in storage
    ORPHANS = "orphans"  # objects that no row names
    LOST = "lost"  # rows of files whose object is gone


DUE = [Kind.FILES, Kind.UPLOADS, Kind.BATCHES, Kind.METADATA, Kind.KEYS]
LITTER = [Kind.UNFINISHED, Kind.ORPHANS, Kind.LOST]


class Place(Message):
    """How far a sweep has come, in its own order; the empty one is the beginning."""

    at: datetime | None = None
    tenant: str = ""
    id: str = ""  # of a row, or an object's key


START = Place()


class Gone(Message):
    """Deleted, or what would be; `bytes` only of what lies in storage."""

    kind: Kind
    count: int = 0
    bytes: int = 0
    failures: int = 0  # things that could not be deleted, or attempts of the whole kind that were given up


class SweepRequest(Message):
    """One turn of one kind. `so_far` is what the turns before it did."""

    kind: Kind
    now: datetime  # the run's beginning: all its turns have the same horizons
    place: Place = START
    so_far: Gone
    dry_run: bool = False


class SweepResult(Message):
    """`place` is where the next turn goes on; None: there is no more."""

    gone: Gone
    place: Place | None = None


class RetentionOrder(Message):
    """`left`, the first of which is at `place`, and `gone` are what a run that continues as new carries."""

    left: list[Kind] = DUE
    dry_run: bool = False
    now: datetime | None = None  # None: as it begins
    place: Place = START
    gone: list[Gone] = []
    errors: list[str] = []
    turns: int = 500  # before it continues as new, where the server does not suggest it earlier


class RetentionResult(Message):
    """A line for each kind of the order, and a sentence for each that was given up."""

    gone: list[Gone]
    errors: list[str] = []
    dry_run: bool = False


class RetentionActivities:
    """Declared here, implemented in `activities/retention.py`; workflows see only this."""

    @activity.defn
    async def sweep(self, request: SweepRequest) -> SweepResult:
        raise NotImplementedError
