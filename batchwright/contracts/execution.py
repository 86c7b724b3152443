"""The execution phase: one model's run, its slices, and the activity it declares."""

from datetime import datetime

from temporalio import activity

from batchwright.contracts.batch import BatchPolicy, Caller
from batchwright.contracts.message import Message
from batchwright.contracts.openai import Endpoint

# Last heartbeat of an attempt that ended by itself: without it, the next one took over from a lost worker.
HANDED_BACK = "handed back"


class SliceRequest(Message):
    """One slice of one model's plan. `generation` grows whenever attempt numbers start anew."""

    batch_id: str
    tenant: str
    weight: float = 1.0
    endpoint: Endpoint
    prefix: str  # ingestion's commit
    model: str
    safe: str
    number: int
    generation: int = 0
    closes_at: datetime
    slice_seconds: float = 30.0
    cancel_grace_seconds: float = 30.0
    expiry_grace_seconds: float = 5.0
    moves: int = 0  # how often slices of this run have changed their queue
    caller: Caller = Caller()


class SliceResult(Message):
    """What the slice has settled so far, over all its turns; `finished`: every line is settled."""

    finished: bool = False
    completed: int = 0
    failed: int = 0
    goes_on_at: str = ""  # the task queue where the slice belongs by now; nothing was sent then

    # In heartbeats: the attempt that tells, and the first one after the last that ended by itself.
    attempt: int = 0
    since: int = 0


class ModelRun(Message):
    """The start argument of a model run; the second half is what continue-as-new carries over."""

    batch_id: str
    tenant: str
    weight: float = 1.0
    priority: int = 3
    endpoint: Endpoint
    prefix: str
    model: str
    safe: str
    lines: int
    slices: int
    closes_at: datetime
    policy: BatchPolicy = BatchPolicy()

    next_slice: int = 0
    unfinished: list[int] = []  # scheduled before, not finished: they go first
    generation: int = 0
    cut_off: int = 0  # slices the deadline ended before they were finished
    completed: int = 0
    failed: int = 0
    paused: bool = False
    stopping: bool = False

    queue: str = ""  # the task queue of its slices; empty: the model's own
    moves: int = 0  # how often that has changed


class ModelRunResult(Message):
    """Counts of the finished slices; the batch's own counts come from finalization."""

    finished: bool
    completed: int = 0
    failed: int = 0


class ExecutionActivities:
    """Declared here, implemented in `activities/execution.py`; workflows see only this."""

    @activity.defn
    async def run_slice(self, request: SliceRequest) -> SliceResult:
        raise NotImplementedError
