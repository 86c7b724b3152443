"""The execution phase: a slice's turns (architecture: slices, turns, segments, ownership)."""

import asyncio
import logging
import time
from dataclasses import dataclass, field
from datetime import timedelta

from temporalio import activity
from temporalio.client import Client
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from activities.errors import translated
from activities.slices.judge import Judge
from activities.slices.ownership import Beat, Ownership, temporal_beat
from activities.slices.progress import ProgressReporter
from activities.slices.sink import SegmentNames, SegmentSink
from activities.slices.turn import End, Share, Times, Turn, TurnTools
from activities.slices.waiting import WaitingSignals
from activities.slices.work import SliceWork, read_record, read_stored, read_work
from batchwright.contracts.errors import Failure
from batchwright.contracts.execution import ExecutionActivities, SliceRequest, SliceResult
from batchwright.database.rows import SliceProgress
from batchwright.inference.backends import Backend, Registry
from batchwright.inference.circuit import Circuit
from batchwright.inference.client import InferenceClient
from batchwright.inference.limits import ByteBudget, Permits
from batchwright.rules import keys
from batchwright.settings import Settings
from batchwright.storage.base import Storage, StorageUnavailable
from batchwright.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)
_DEFER_FIRST, _DEFER_LONGEST = 5.0, 60.0
_HANDOVER_SECONDS = 3.0  # of the drain, kept for the last flush


@dataclass
class Tools:
    """What all slices of a process share."""

    storage: Storage
    client: InferenceClient
    registry: Registry
    progress: ProgressReporter
    metrics: Metrics
    settings: Settings
    temporal: Client
    permits: Permits = field(init=False)
    budget: ByteBudget = field(init=False)
    waiting: WaitingSignals = field(init=False)
    circuits: dict[str, Circuit] = field(default_factory=dict[str, Circuit])
    deferrals: dict[str, int] = field(default_factory=dict[str, int])

    def __post_init__(self) -> None:
        own = {name: model.in_flight for name, model in self.settings.models.items() if model.in_flight}
        self.permits = Permits(
            total=self.settings.global_in_flight, per_model=self.settings.model_in_flight, own=own
        )
        self.budget = ByteBudget(self.settings.byte_budget)
        self.waiting = WaitingSignals(self.temporal)

    def circuit(self, model: str) -> Circuit:
        return self.circuits.setdefault(model, Circuit(self.settings.circuit_failures))


class Execution(ExecutionActivities):
    def __init__(self, tools: Tools) -> None:
        self._tools = tools

    @activity.defn
    async def run_slice(self, request: SliceRequest) -> SliceResult:
        """Send what the slice has not settled yet, for one turn.

        Returns the slice's counts when every line is settled, and also when it was cancelled or its window
        closed, then with `finished` false. A line is settled once its record lies in a stored segment; those
        are never asked again, whatever is killed.

        Raises:
            TurnOver, Deferred: benign; Temporal starts the next turn, and the slot is free meanwhile.
            OwnershipLost: another attempt has the slice.
            StorageUnavailable: retried. PlanDamaged, ResultsDamaged: never retried.
        """
        attempt = SliceAttempt(self._tools, request, temporal_beat(self._tools.temporal))
        running = asyncio.create_task(attempt.run())
        while not running.done():
            try:
                await asyncio.shield(running)
            except asyncio.CancelledError:
                attempt.cancelled()
            except ApplicationError:
                break  # raised again below
        return running.result()


class SliceAttempt:
    """One attempt of the activity: one turn, sent in a task that a cancel does not reach."""

    def __init__(self, tools: Tools, request: SliceRequest, beat: Beat) -> None:
        self._tools, self._request = tools, request
        info = activity.info()
        folder = keys.slice_results(request.tenant, request.batch_id, request.safe, request.number)
        names = SegmentNames(folder, request.generation, info.attempt)
        self._folder, self._attempt = folder, info.attempt
        self._sink = SegmentSink(tools.storage, tools.budget, tools.metrics, names)
        self._owner = Ownership(beat, info.heartbeat_timeout)
        self._turn: Turn | None = None
        self._stop: End | None = None

    def cancelled(self) -> None:
        """The SDK cancelled the activity: asked for, or the worker goes, or the server gave up on it."""
        details = activity.cancellation_details()
        if details is not None and (details.cancel_requested or details.paused):
            self._end(End.STOPPED)
        elif activity.is_worker_shutdown():
            self._end(End.DRAINED)
        else:
            self._end(End.LOST)

    async def run(self) -> SliceResult:
        helpers = [
            asyncio.create_task(
                self._owner.run(
                    self._told, cancelled=lambda: self._end(End.STOPPED), lost=lambda: self._end(End.LOST)
                )
            ),
            asyncio.create_task(self._watch_shutdown()),
            asyncio.create_task(self._sink.run()),
        ]
        try:
            async with translated():
                end = await self._take_turn()
        finally:
            for helper in helpers:
                helper.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)
            self._sink.abandon()
        return self._outcome(end)

    def _end(self, end: End) -> None:
        self._stop = end
        if self._turn is not None:
            self._turn.stop(end)

    async def _watch_shutdown(self) -> None:
        await activity.wait_for_worker_shutdown()
        self._end(End.DRAINED)

    async def _take_turn(self) -> End:
        tools, request = self._tools, self._request
        backend = tools.registry.backend_of(request.model)
        if backend is None:
            return self._nobody_serves()
        record = await read_record(tools.storage, request)
        await tools.budget.take_shard(record.shard_bytes)
        try:
            stored = await read_stored(tools.storage, self._folder)
            self._sink.start_with(stored)
            work = await read_work(tools.storage, request, record, stored)
            end = await self._send(work, backend)
            if end is not End.LOST:
                await self._sink.close()
        finally:
            tools.budget.give_shard(record.shard_bytes)
        if end is End.FINISHED:
            await self._compact()
        return end

    async def _send(self, work: SliceWork, backend: Backend) -> End:
        tools, request = self._tools, self._request
        circuit = tools.circuit(request.model)
        judge = Judge(
            request.batch_id,
            request.model,
            sink=self._sink,
            circuit=circuit,
            permits=tools.permits,
            settings=tools.settings,
            metrics=tools.metrics,
        )
        self._turn = Turn(
            work,
            judge,
            self._sink,
            self._owner,
            tools=TurnTools(tools.client, circuit, tools.permits, tools.budget),
            share=Share(request.model, request.tenant, request.weight),
            times=self._times(),
            url=backend.endpoint(request.endpoint),
        )
        if self._stop is not None:
            self._turn.stop(self._stop)
        return await self._turn.run()

    def _times(self) -> Times:
        request = self._request
        return Times(
            turn=request.slice_seconds,
            closes_at=request.closes_at.timestamp(),
            expiry_grace=request.expiry_grace_seconds,
            cancel_grace=request.cancel_grace_seconds,
            drain_grace=max(0.0, self._tools.settings.drain_seconds - _HANDOVER_SECONDS),
        )

    def _nobody_serves(self) -> End:
        logger.warning("no backend serves the model of a slice", extra={"model": self._request.model})
        return End.DEFERRED

    async def _compact(self) -> None:
        try:
            await self._sink.compact()
        except StorageUnavailable as error:  # what is settled lies in several segments then, no worse
            logger.info("segments were not compacted", extra={"error": str(error), **self._place()})

    def _told(self) -> SliceResult:
        """The counts, for the heartbeat and for the batch's row."""
        sink, request = self._sink, self._request
        self._tools.progress.tell(
            SliceProgress(
                tenant=request.tenant,
                batch_id=request.batch_id,
                model=request.model,
                number=request.number,
                generation=request.generation,
                attempt=self._attempt,
                completed=sink.completed,
                failed=sink.failed,
                usage=sink.usage,
            )
        )
        return SliceResult(completed=sink.completed, failed=sink.failed)

    def _outcome(self, end: End) -> SliceResult:
        counts = self._told() if end is not End.LOST else SliceResult()
        tools, request = self._tools, self._request
        if end is not End.DEFERRED and self._turn is not None and self._turn.has_sent:
            tools.deferrals.pop(request.model, None)
            tools.waiting.moves(request.batch_id, request.model)
        match end:
            case End.FINISHED:
                return counts.model_copy(update={"finished": True})
            case End.CLOSED | End.STOPPED:
                return counts
            case End.TURN_OVER | End.DRAINED:
                raise _next_turn(Failure.TURN_OVER, f"slice {request.number} goes on in its next turn", 0.001)
            case End.LOST:
                raise ApplicationError("another attempt owns the slice", type=Failure.OWNERSHIP_LOST)
            case End.DEFERRED:
                raise self._deferral()

    def _deferral(self) -> ApplicationError:
        """5 s doubling to 60 s while the model takes nothing, never past the window."""
        tools, request = self._tools, self._request
        count = tools.deferrals[request.model] = tools.deferrals.get(request.model, 0) + 1
        circuit = tools.circuit(request.model)
        delay = max(circuit.wait(), min(_DEFER_FIRST * 2.0 ** min(count - 1, 10), _DEFER_LONGEST))
        left = request.closes_at.timestamp() - time.time()
        reason = self._reason(circuit)
        tools.waiting.waits(request.batch_id, request.model, reason)
        label = "authentication" if circuit.reason == "authentication" else "capacity"
        tools.metrics.deferrals.labels(label).inc()
        return _next_turn(Failure.DEFERRED, reason, max(0.001, min(delay, left)))

    def _reason(self, circuit: Circuit) -> str:
        model = self._request.model
        if self._tools.registry.backend_of(model) is None:
            return f"no backend serves {model}"
        if circuit.reason == "authentication":
            return f"the backend of {model} refuses our key (401 or 403): check BATCHWRIGHT_BACKEND_API_KEY"
        return (
            f"the backend of {model} takes nothing now: {circuit.reason or 'every line waits for its retry'}"
        )

    def _place(self) -> dict[str, str | int]:
        request = self._request
        return {"batch_id": request.batch_id, "model": request.model, "slice": request.number}


def _next_turn(kind: Failure, message: str, delay: float) -> ApplicationError:
    return ApplicationError(
        message,
        type=kind,
        category=ApplicationErrorCategory.BENIGN,
        next_retry_delay=timedelta(seconds=delay),
    )
