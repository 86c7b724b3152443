"""Stub activities that behave as a test configures, and record their requests."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime

from temporalio import activity
from temporalio.exceptions import ApplicationError

from batchwright.contracts.errors import Failure
from batchwright.contracts.temporal_payloads.batch import BatchOrder
from batchwright.contracts.temporal_payloads.batch_schedules import (
    RunRecord,
    ScheduleActivities,
    ScheduledBatch,
    ScheduledRun,
)
from batchwright.contracts.temporal_payloads.consistency import (
    ConsistencyCheckActivities,
    ConsistencyCheckOrder,
    ConsistencyCheckResult,
    DifferenceCount,
)
from batchwright.contracts.temporal_payloads.execution import ExecutionActivities, SliceRequest, SliceResult
from batchwright.contracts.temporal_payloads.finalization import (
    EndRequest,
    FinalizationActivities,
    FinalizeRequest,
    FinalizeResult,
    LifecycleActivities,
)
from batchwright.contracts.temporal_payloads.ingestion import IngestionActivities, IngestResult, ModelShare
from batchwright.contracts.temporal_payloads.output_copies import OutputCopyActivities, OutputCopyState
from batchwright.contracts.temporal_payloads.retention import (
    DeletionCount,
    RetentionActivities,
    RetentionKind,
    SweepPosition,
    SweepRequest,
    SweepResult,
)
from batchwright.contracts.temporal_payloads.webhooks import AttemptRequest, AttemptResult, WebhookActivities
from batchwright.contracts.terms import BatchStatus

LINES_A_SLICE = 10
Clock = Callable[[], Awaitable[datetime]]
SliceBehaviour = Callable[[SliceRequest], Awaitable[SliceResult]]

FOREIGN = ApplicationError("Whose is it?", type=Failure.FOREIGN_STORAGE, non_retryable=True)
FINISHED = SliceResult(finished=True, completed=LINES_A_SLICE)


def share(model: str, slices: int = 2) -> ModelShare:
    return ModelShare(model=model, safe_model=model, lines=LINES_A_SLICE * slices, slices=slices)


def ingested(*shares: ModelShare) -> IngestResult:
    return IngestResult(
        ingest_prefix="ingest/1", models=list(shares), total=sum(share.lines for share in shares)
    )


async def finishes(request: SliceRequest) -> SliceResult:
    return FINISHED


async def ends_unfinished(request: SliceRequest) -> SliceResult:
    """Run a slice that ends before the workflow's deadline, as if the worker's clock were ahead of the
    workflow's clock.
    """
    return SliceResult(completed=1)


async def until_cancelled(request: SliceRequest) -> SliceResult:
    """Run a slice until its activity is cancelled, then return a partial result."""
    try:
        while True:
            activity.heartbeat()
            await asyncio.sleep(0.02)
    except asyncio.CancelledError:
        return SliceResult(completed=1)


async def fails(request: SliceRequest) -> SliceResult:
    raise ApplicationError("The plan is damaged.", type=Failure.PLAN_DAMAGED)


class Belongs:
    """A slice that finishes on the task queue `to`. On any other task queue, it requests a move to `to`."""

    def __init__(self, to: str) -> None:
        self.to = to
        self.met: list[tuple[str, int]] = []  # queue and slice, in order

    async def __call__(self, request: SliceRequest) -> SliceResult:
        queue = activity.info().task_queue
        self.met.append((queue, request.number))
        return FINISHED if queue == self.to else SliceResult(target_queue=self.to)


class StubIngestion(IngestionActivities):
    def __init__(self, result: IngestResult) -> None:
        self.result = result
        self.started = asyncio.Event()
        self.released = asyncio.Event()
        self.released.set()
        self.failure: ApplicationError | None = None
        self.deaf = False  # ignores cancellation

    @activity.defn
    async def ingest(self, order: BatchOrder) -> IngestResult:
        self.started.set()
        if self.failure is not None:
            raise self.failure
        while True:
            try:
                await _beat_until(self.released)
                break
            except asyncio.CancelledError:
                if not self.deaf:
                    raise
        if self.failure is not None:
            raise self.failure
        return self.result


class StubExecution(ExecutionActivities):
    """A stub of the activity that runs slices.

    `behaviours` maps slice numbers or model names to functions. A slice without a function finishes
    immediately.
    """

    def __init__(self) -> None:
        self.requests: list[SliceRequest] = []
        self.behaviours: dict[int | str, SliceBehaviour] = {}
        self._ended = 0
        self._changed = asyncio.Condition()

    @activity.defn
    async def run_slice(self, request: SliceRequest) -> SliceResult:
        async with self._changed:
            self.requests.append(request)
            self._changed.notify_all()
        behaviour = self.behaviours.get(request.number) or self.behaviours.get(request.model) or finishes
        try:
            return await behaviour(request)
        finally:
            async with self._changed:
                self._ended += 1
                self._changed.notify_all()

    async def ended(self, times: int) -> None:
        """Wait until at least `times` slices have ended.

        A test must call this before it resumes a paused run. A workflow that receives the signals for pause
        and resume together never pauses.
        """
        async with self._changed:
            await self._changed.wait_for(lambda: self._ended >= times)

    async def wait_for_requests(self, times: int) -> None:
        """Wait until slices have been started at least `times` times."""
        async with self._changed:
            await self._changed.wait_for(lambda: len(self.requests) >= times)


class StubFinalization(FinalizationActivities):
    def __init__(self) -> None:
        self.requests: list[FinalizeRequest] = []
        self.started = asyncio.Event()
        self.released = asyncio.Event()
        self.released.set()
        self.failure: ApplicationError | None = None
        self.failures = 0  # number of attempts that fail with unavailable storage
        self.silent = asyncio.Event()  # set: every finalization waits for `released`
        self.failed_by_code: dict[str, int] = {}

    @activity.defn
    async def finalize(self, request: FinalizeRequest) -> FinalizeResult:
        self.requests.append(request)
        self.started.set()
        if self.silent.is_set():
            await _beat_until(self.released)
        if self.failure is not None:
            raise self.failure
        if self.failures:
            self.failures -= 1
            raise ApplicationError("Storage is away.", type=Failure.STORAGE_UNAVAILABLE)
        if request.status == BatchStatus.COMPLETED:
            await _beat_until(self.released)
        done = request.total - sum(self.failed_by_code.values())
        return FinalizeResult(
            status=request.status,
            completed=done,
            failed=request.total - done,
            failed_by_code=self.failed_by_code,
        )


class StubLifecycle(LifecycleActivities):
    def __init__(self) -> None:
        self.inserted: list[str] = []
        self.insert_error: ApplicationError | None = None
        self.requests: list[EndRequest] = []
        self.ended = asyncio.Event()

    @activity.defn
    async def insert_row(self, order: BatchOrder) -> None:
        if self.insert_error is not None:
            raise self.insert_error
        self.inserted.append(order.batch_id)

    @activity.defn
    async def end(self, request: EndRequest) -> BatchStatus:
        self.requests.append(request)
        self.ended.set()
        return request.status


class StubRetention(RetentionActivities):
    """A stub of the retention activity. Each call reports one deleted object of one byte.

    `turns` has the number of calls that a kind of data needs. `failing` has the error that a kind raises.
    """

    def __init__(self) -> None:
        self.requests: list[SweepRequest] = []
        self.turns: dict[RetentionKind, int] = {}
        self.failing: dict[RetentionKind, ApplicationError] = {}
        self.started = asyncio.Event()
        self.released = asyncio.Event()
        self.released.set()

    @activity.defn
    async def sweep(self, request: SweepRequest) -> SweepResult:
        self.requests.append(request)
        self.started.set()
        await _beat_until(self.released)
        if request.kind in self.failing:
            raise self.failing[request.kind]
        turn = int(request.position.id or "1")
        position = SweepPosition(id=str(turn + 1)) if turn < self.turns.get(request.kind, 1) else None
        return SweepResult(deleted=DeletionCount(kind=request.kind, count=1, bytes=1), position=position)


async def _beat_until(event: asyncio.Event) -> None:
    while not event.is_set():
        activity.heartbeat()
        await asyncio.sleep(0.02)


class StubConsistencyChecking(ConsistencyCheckActivities):
    """A stub of the consistency check activity.

    It fails `failures` times with a retryable error, and then returns `result`.
    """

    def __init__(self) -> None:
        self.result = ConsistencyCheckResult(
            rows=1, runs=1, files=2, counts={"counts": DifferenceCount(found=1, left=1)}
        )
        self.failures = 0

    @activity.defn
    async def check_consistency(self, order: ConsistencyCheckOrder) -> ConsistencyCheckResult:
        if self.failures:
            self.failures -= 1
            raise ApplicationError("away", type=Failure.DATABASE_UNAVAILABLE)
        return self.result


class StubWebhooks(WebhookActivities):
    """A stub of the activity that delivers webhooks.

    The first `broken` attempts raise an error, and the next `failures` attempts fail. `clock` returns the
    times that are recorded in `begins`.
    """

    def __init__(self) -> None:
        self.requests: list[AttemptRequest] = []
        self.begins: list[datetime] = []
        self.broken, self.failures = 0, 0
        self.clock: Clock | None = None
        self.result = AttemptResult(is_final=True, outcome="delivered")

    @activity.defn
    async def deliver_webhook(self, request: AttemptRequest) -> AttemptResult:
        self.requests.append(request)
        if self.clock is not None:
            self.begins.append(await self.clock())
        if self.broken:
            self.broken -= 1
            raise ApplicationError("A bug.", type=Failure.UNEXPECTED, non_retryable=True)
        if self.failures:
            self.failures -= 1
            return AttemptResult(is_final=request.is_last, outcome="Status 500.")
        return self.result


class StubOutputCopies(OutputCopyActivities):
    """A stub of the activities that copy files. While `is_down` is True, attempts fail."""

    def __init__(self) -> None:
        self.attempts, self.given_up, self.is_down = 0, 0, False

    @activity.defn
    async def copy_output(self, order: BatchOrder) -> OutputCopyState:
        self.attempts += 1
        if self.is_down:
            raise ApplicationError("The bucket is down.", type=Failure.STORAGE_UNAVAILABLE)
        return OutputCopyState.WRITTEN

    @activity.defn
    async def give_up_output_copy(self, order: BatchOrder) -> OutputCopyState:
        self.given_up += 1
        return OutputCopyState.FAILED


class StubScheduling(ScheduleActivities):
    """A stub of the activities of a schedule's run.

    Admission raises each error in `failures` once, and then returns `result`. A batch has ended after
    `polls_until_end` polls.
    """

    def __init__(self) -> None:
        self.requests: list[ScheduledRun] = []
        self.records: list[RunRecord] = []
        self.cancels: list[str] = []  # ids of batches
        self.polls_until_end = 0
        self.result = ScheduledBatch()
        self.failures: list[ApplicationError] = []
        self.started = asyncio.Event()
        self.released = asyncio.Event()
        self.released.set()

    @activity.defn
    async def admit_scheduled_batch(self, run: ScheduledRun) -> ScheduledBatch:
        self.requests.append(run)
        self.started.set()
        if self.failures:
            raise self.failures.pop()
        await self.released.wait()
        return self.result

    @activity.defn
    async def record_scheduled_run(self, record: RunRecord) -> None:
        self.records.append(record)

    @activity.defn
    async def record_scheduled_cancel(self, order: BatchOrder) -> None:
        self.cancels.append(order.batch_id)

    @activity.defn
    async def end_of_scheduled_batch(self, order: BatchOrder) -> BatchStatus | None:
        del order
        if activity.info().attempt <= self.polls_until_end:
            raise ApplicationError("live", type=Failure.BATCH_LIVE)
        return BatchStatus.CANCELLED
