"""Stand-ins for the activities: they do what a test says, and remember what they were asked."""

import asyncio
from collections.abc import Awaitable, Callable

from temporalio import activity
from temporalio.exceptions import ApplicationError

from batchwright.contracts.audit import AuditActivities, AuditCount, AuditOrder, AuditResult
from batchwright.contracts.batch import BatchOrder
from batchwright.contracts.errors import Failure
from batchwright.contracts.execution import ExecutionActivities, SliceRequest, SliceResult
from batchwright.contracts.finalization import FinalizationActivities, FinalizeRequest, FinalizeResult
from batchwright.contracts.ingestion import IngestionActivities, IngestResult, ModelShare
from batchwright.contracts.lifecycle import EndRequest, LifecycleActivities
from batchwright.contracts.openai import BatchStatus
from batchwright.contracts.retention import (
    Gone,
    Kind,
    Place,
    RetentionActivities,
    SweepRequest,
    SweepResult,
)

LINES_A_SLICE = 10
SliceBehaviour = Callable[[SliceRequest], Awaitable[SliceResult]]

FOREIGN = ApplicationError("Whose is it?", type=Failure.FOREIGN_STORAGE, non_retryable=True)
FINISHED = SliceResult(finished=True, completed=LINES_A_SLICE)


def share(model: str, slices: int = 2) -> ModelShare:
    return ModelShare(model=model, safe=model, lines=LINES_A_SLICE * slices, slices=slices)


def ingested(*shares: ModelShare) -> IngestResult:
    return IngestResult(prefix="ingest/1", models=list(shares), total=sum(share.lines for share in shares))


async def finishes(request: SliceRequest) -> SliceResult:
    return FINISHED


async def until_cancelled(request: SliceRequest) -> SliceResult:
    """Works on and on; gives back what it has when it is told to stop."""
    try:
        while True:
            activity.heartbeat()
            await asyncio.sleep(0.02)
    except asyncio.CancelledError:
        return SliceResult(completed=1)


async def fails(request: SliceRequest) -> SliceResult:
    raise ApplicationError("The plan is damaged.", type=Failure.PLAN_DAMAGED)


class Belongs:
    """A behaviour: slices finish on the queue `to`, and on any other go on there."""

    def __init__(self, to: str) -> None:
        self.to = to
        self.met: list[tuple[str, int]] = []  # queue and slice, in order

    async def __call__(self, request: SliceRequest) -> SliceResult:
        queue = activity.info().task_queue
        self.met.append((queue, request.number))
        return FINISHED if queue == self.to else SliceResult(goes_on_at=self.to)


class Ingestion(IngestionActivities):
    def __init__(self, result: IngestResult) -> None:
        self.result = result
        self.started = asyncio.Event()
        self.released = asyncio.Event()
        self.released.set()
        self.failure: ApplicationError | None = None
        self.deaf = False  # it does not end when it is cancelled

    @activity.defn
    async def ingest(self, order: BatchOrder) -> IngestResult:
        self.started.set()
        if self.failure is not None:
            raise self.failure
        while True:
            try:
                await _beat_until(self.released)
                return self.result
            except asyncio.CancelledError:
                if not self.deaf:
                    raise


class Execution(ExecutionActivities):
    """`behaviours` by slice number or model; what is named nowhere finishes at once."""

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
        """Returns when that many of the started slices are at work no more.

        A resume comes after this: a workflow that hears of it together with the pause has never paused.
        """
        async with self._changed:
            await self._changed.wait_for(lambda: self._ended >= times)

    async def asked(self, times: int) -> None:
        """Returns when slices have been started `times` times altogether."""
        async with self._changed:
            await self._changed.wait_for(lambda: len(self.requests) >= times)


class Finalization(FinalizationActivities):
    def __init__(self) -> None:
        self.requests: list[FinalizeRequest] = []
        self.started = asyncio.Event()
        self.released = asyncio.Event()
        self.released.set()
        self.failure: ApplicationError | None = None
        self.failures = 0  # of a storage that is away for a moment

    @activity.defn
    async def finalize(self, request: FinalizeRequest) -> FinalizeResult:
        self.requests.append(request)
        self.started.set()
        if self.failure is not None:
            raise self.failure
        if self.failures:
            self.failures -= 1
            raise ApplicationError("Storage is away.", type=Failure.STORAGE_UNAVAILABLE)
        if request.status == BatchStatus.COMPLETED:
            await _beat_until(self.released)
        return FinalizeResult(status=request.status, completed=request.total)


class Lifecycle(LifecycleActivities):
    def __init__(self) -> None:
        self.requests: list[EndRequest] = []

    @activity.defn
    async def end(self, request: EndRequest) -> BatchStatus:
        self.requests.append(request)
        return request.status


class Retention(RetentionActivities):
    """Each turn deletes one thing of a byte; `turns` says how many a kind has, `failing` how it fails."""

    def __init__(self) -> None:
        self.requests: list[SweepRequest] = []
        self.turns: dict[Kind, int] = {}
        self.failing: dict[Kind, ApplicationError] = {}
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
        turn = int(request.place.id or "1")
        place = Place(id=str(turn + 1)) if turn < self.turns.get(request.kind, 1) else None
        return SweepResult(gone=Gone(kind=request.kind, count=1, bytes=1), place=place)


async def _beat_until(event: asyncio.Event) -> None:
    while not event.is_set():
        activity.heartbeat()
        await asyncio.sleep(0.02)


class Auditing(AuditActivities):
    """Finds `result`, after `failures` that are worth another try."""

    def __init__(self) -> None:
        self.result = AuditResult(rows=1, runs=1, files=2, counts={"counts": AuditCount(found=1, left=1)})
        self.failures = 0

    @activity.defn
    async def audit(self, order: AuditOrder) -> AuditResult:
        if self.failures:
            self.failures -= 1
            raise ApplicationError("away", type=Failure.DATABASE_UNAVAILABLE)
        return self.result
