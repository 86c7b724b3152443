"""Messages and activity of the execution phase, which sends the lines of a batch.

Each model of a batch has a model run, which is a child workflow. The model run starts an activity for each
slice, which is a part of the model's lines. Each attempt of the activity is a turn: it sends lines for a
limited time. If lines are left, the next attempt is a new turn, which continues the slice.
"""

from datetime import datetime
from typing import Self

from temporalio import activity

from batchwright.contracts.message import Message
from batchwright.contracts.model_registry.price_config import PriceConfig
from batchwright.contracts.temporal_payloads.batch import (
    DEFAULT_PRIORITY,
    BatchOrder,
    BatchPolicy,
    Caller,
    ModelProgress,
)
from batchwright.contracts.temporal_payloads.ingestion import ModelShare
from batchwright.contracts.terms import Endpoint

# Last heartbeat of an attempt that ended by itself. If an attempt ended without it, its worker crashed.
RELEASED = "released"


class ModelRun(Message):
    """The argument with which a model run is started.

    A model run is a workflow that sends a batch's lines for one model. Each of its activities sends one
    slice, which is a part of the lines. If the history of a model run becomes long, the next model run gets
    the slices that are left to schedule. The fields from `number` on are the state with which the next model
    run begins.
    """

    batch_id: str
    tenant: str
    weight: float = 1.0
    priority: int = DEFAULT_PRIORITY
    endpoint: Endpoint
    ingest_prefix: str  # key prefix of the objects that ingestion committed
    model: str
    safe_model: str  # the model's name in a form that object keys and queue names allow
    lines: int
    slices: int
    created_at: datetime | None = None
    deadline: datetime
    policy: BatchPolicy = BatchPolicy()
    prices: PriceConfig | None = None  # prices of the model when the batch was planned; None without prices
    progress_reports: int = 20  # approximate number of reports of progress to the batch's workflow

    number: int = 1  # which of the model runs of the same model and batch this is
    next_slice: int = 0  # first slice that no model run has scheduled
    unfinished_slices: list[int] = []  # slices to schedule first: they were scheduled but have not finished
    generation: int = 0
    paused: bool = False

    queue: str = ""  # task queue of the slices; empty for the model's own queue
    queue_changes: int = 0  # how often the queue has changed
    workers: int = 0  # workers that served the queue when a slice last ended; 0 if none has ended

    @property
    def slices_left(self) -> int:
        """Number of slices that are left to schedule when the model run begins."""
        return len(self.unfinished_slices) + self.slices - self.next_slice

    def progress(self, slices_done: int) -> ModelProgress:
        return ModelProgress(
            model=self.model, run=self.number, lines=self.lines, slices=self.slices, slices_done=slices_done
        )

    @classmethod
    def of(
        cls, order: BatchOrder, share: ModelShare, ingest_prefix: str, *, progress_reports: int = 20
    ) -> Self:
        """Return the start argument of the workflow that sends a batch's lines for one model.

        Args:
            order: start argument of the batch's workflow.
            share: the model, and the number of its lines and slices (parts of its lines).
            ingest_prefix: beginning of the keys of the stored objects that ingestion (the validation of the
                input) wrote for the batch.
            progress_reports: approximate number of progress reports to the batch's workflow.
        """
        return cls(
            batch_id=order.batch_id,
            tenant=order.tenant,
            weight=order.weight,
            priority=order.priority,
            endpoint=order.endpoint,
            ingest_prefix=ingest_prefix,
            model=share.model,
            safe_model=share.safe_model,
            lines=share.lines,
            slices=share.slices,
            created_at=order.starts_at,
            deadline=order.deadline,
            policy=order.policy,
            prices=share.prices,
            progress_reports=progress_reports,
            queue=share.queue,
        )


class SliceRequest(Message):
    """Argument of the activity `run_slice`, which sends the lines of one slice.

    A slice is a part of a batch's lines for one model. `number` is the number of the slice, and `slices` the
    number of all slices of the batch and the model.

    If the workflow schedules the same slice again, `generation` is greater than before, and Temporal counts
    the attempts from 1 again. To find the newer of two attempts, compare their `generation` first. If
    `generation` is equal, the attempt with the greater attempt number is newer.
    """

    batch_id: str
    tenant: str
    weight: float = 1.0
    priority: int = DEFAULT_PRIORITY
    endpoint: Endpoint
    ingest_prefix: str
    model: str
    safe_model: str
    number: int
    slices: int = 1
    generation: int = 0
    deadline: datetime
    slice_seconds: float = 30.0
    cancel_grace_seconds: float = 30.0
    expiry_grace_seconds: float = 5.0
    queue_changes: int = 0  # how often slices of this run have moved to another queue
    prices: PriceConfig | None = None
    caller: Caller = Caller()
    answers_calls: bool = False  # True if the lines are single calls, whose answers are recorded at once

    @classmethod
    def of(cls, run: ModelRun, number: int) -> Self:
        policy = run.policy
        return cls(
            batch_id=run.batch_id,
            tenant=run.tenant,
            weight=run.weight,
            priority=run.priority,
            endpoint=run.endpoint,
            ingest_prefix=run.ingest_prefix,
            model=run.model,
            safe_model=run.safe_model,
            number=number,
            slices=run.slices,
            generation=run.generation,
            deadline=run.deadline,
            slice_seconds=policy.slice_seconds,
            cancel_grace_seconds=policy.cancel_grace_seconds,
            expiry_grace_seconds=policy.expiry_grace_seconds,
            queue_changes=run.queue_changes,
            prices=run.prices,
            caller=policy.caller,
            answers_calls=policy.rolling is not None,
        )


class SliceResult(Message):
    """The result and the heartbeat of the activity `run_slice`, which sends a part of a model's lines.

    Attributes:
        finished: True if all lines of the slice have a final result.
        over_cap: True if the remaining lines were not sent, because the batch has reached its maximum cost.
        completed: number of lines that succeeded.
        failed: number of lines that failed.
    """

    finished: bool = False
    over_cap: bool = False
    completed: int = 0
    failed: int = 0
    target_queue: str = ""  # task queue to which the slice must move; then nothing was sent
    workers: int = 0  # workers that serve the slice's task queue; 0 if unknown

    # Only in heartbeats: the number of the reporting attempt. True if it has read the lines of the slice.
    attempt: int = 0
    has_read: bool = False
    # Only in heartbeats: how many attempts crashed before it, since a turn last ended after it had read the
    # lines. The number of the first of these attempts; 0 if none crashed.
    crashes: int = 0
    first_crash: int = 0
    # Only in heartbeats: how many of the crashed attempts were preparing the slice in quarantine, and True if
    # the reporting attempt is doing that now.
    preparation_crashes: int = 0
    is_preparing: bool = False
    # Only in heartbeats: how many attempts crashed before they had read the lines, since one last read them.
    unread_crashes: int = 0


class ModelRunResult(Message):
    """The result of the workflow for one model of a batch: how many lines completed and how many failed.

    The counts of lines are preliminary, because only finished slices (parts of the lines) count. The lines
    are counted again when the output files are written.

    Attributes:
        finished: True if all slices of this workflow are finished. Slices that this workflow has handed over
            to the next workflow for the same model do not count.
        over_cap: True if the workflow ended because the batch has reached its maximum cost.
        slices_done: number of finished slices.
    """

    finished: bool
    over_cap: bool = False
    slices_done: int = 0
    completed: int = 0
    failed: int = 0


class ExecutionActivities:
    """The declaration of the activity `run_slice`. Workflows call it without importing its code.

    The implementation is in `activities/execution/activity.py`.
    """

    @activity.defn
    async def run_slice(self, request: SliceRequest) -> SliceResult:
        raise NotImplementedError
