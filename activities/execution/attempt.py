"""One attempt (turn) of a slice: read its lines, send them for a limited time, store the results."""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from functools import partial
from typing import NamedTuple

from temporalio import activity
from temporalio.exceptions import ApplicationError

from batchwright.activities.errors import failure, translated
from batchwright.activities.execution.dispatch_loop import SliceDispatcher
from batchwright.activities.execution.line_settlement import LineSettler
from batchwright.activities.execution.progress_report import SliceReporter
from batchwright.activities.execution.rate_pacer import RatePacer
from batchwright.activities.execution.slice_state.lease import (
    HeartbeatReply,
    LeaseLost,
    SliceLease,
    is_fresh_attempt,
)
from batchwright.activities.execution.slice_state.line_quarantine import (
    MAX_LINE_CRASHES,
    MAX_PREPARATION_CRASHES,
    CrashQuarantine,
    attempt_history,
)
from batchwright.activities.execution.slice_state.line_queue import LineQueue, SliceLine
from batchwright.activities.execution.slice_state.resumed_slice import (
    read_line_queue,
    read_slice_record,
    read_stored_results,
)
from batchwright.activities.execution.slice_state.segment_buffer import (
    FLUSH_RESULTS,
    LAST_FLUSH_SECONDS,
    SegmentBuffer,
    SegmentStore,
)
from batchwright.activities.execution.slice_stop_signal import StopReason, StopSignal
from batchwright.activities.execution.turn_context import TurnContext, next_turn_error
from batchwright.activities.execution.worker_context import WorkerContext
from batchwright.activities.services.batch_cost_cap import SliceCost
from batchwright.activities.services.call_answers import CallAnswers
from batchwright.activities.services.worker_slices.held_slices import HeldSlice
from batchwright.background import BackgroundTasks
from batchwright.contracts.errors import LINE_MESSAGES, Failure, LineCode
from batchwright.contracts.temporal_payloads.execution import SliceRequest, SliceResult
from batchwright.inference.router import ModelRouter
from batchwright.rules.deadline import Deadline
from batchwright.rules.planning.plan_format import SliceRecord
from batchwright.rules.stored_objects import object_keys
from batchwright.storage.base import ObjectMissing, StorageUnavailable
from batchwright.telemetry import tracing

logger = logging.getLogger(__name__)
_COMPACT_BETWEEN_TURNS = 8  # number of segments
_POLL_SECONDS = 0.1
_HELD_SECONDS = 10.0  # pause before the next turn of a slice that an operator holds
_LAST_REPORT_SECONDS = 3.0  # limit for the last report, in case the database hangs
_REASONS = {
    HeartbeatReply.CANCEL_REQUESTED: StopReason.CANCELLED,
    HeartbeatReply.PAUSED: StopReason.SHUTDOWN,
    HeartbeatReply.LEASE_LOST: StopReason.LEASE_LOST,
}


class _TurnEnd(NamedTuple):
    """The end of a turn (one attempt of a slice): the reason, and what is left to send.

    Attributes:
        blocked_seconds: seconds until the next line is due; 0 if a line is due now or no line is left.
        unsettled: number of lines without a result; 0 if the lines were not read.
    """

    reason: StopReason
    blocked_seconds: float = 0.0
    unsettled: int = 0


class SliceAttempt:
    """One attempt of the activity `run_slice`, which sends lines of a slice.

    The attempt runs in its own task. So it can still store its results when the activity is cancelled.
    """

    def __init__(self, worker: WorkerContext, request: SliceRequest, held: HeldSlice) -> None:
        self._worker, self._request, self._held = worker, request, held
        info = activity.info()
        self._folder = object_keys.slice_results(
            request.tenant, request.batch_id, request.safe_model, request.number
        )
        self._lease = SliceLease(worker.heartbeat(), info.heartbeat_timeout)
        self._store = SegmentStore(
            worker.storage, self._folder, request.generation, info.attempt, self._lease
        )
        answers = CallAnswers(worker.calls, request.tenant) if request.answers_calls else None
        self._writer = SegmentBuffer(self._store, worker.budget, worker.metrics, answers)
        self._reporter = SliceReporter(worker, request, self._writer, info.attempt)
        history = attempt_history(info.attempt, info.heartbeat_details)
        self._quarantine = CrashQuarantine(history, request.generation)
        self._dispatcher: SliceDispatcher | None = None
        self._cost: SliceCost | None = None
        self._stop = StopSignal(
            deadline=Deadline.of(request.deadline, request.expiry_grace_seconds),
            cancel_grace=request.cancel_grace_seconds,
            shutdown_grace=max(0.0, worker.settings.drain_seconds - LAST_FLUSH_SECONDS),
        )

    async def run(self) -> SliceResult:
        """Send lines of the slice for a limited time (one turn), and return the slice's counts.

        Raises the ApplicationErrors that `Execution.run_slice` documents.
        """
        started_at = time.monotonic()
        failures = self._worker.metrics.background_failures
        helpers = BackgroundTasks(lambda task, _: failures.labels(task).inc())
        heartbeats = partial(
            self._lease.run,
            self._heartbeat_details,
            on_reply=lambda reply: self._stop_turn(_REASONS[reply]),
            at_once=not is_fresh_attempt(activity.info(), datetime.now(UTC)),
        )
        on_lost = partial(self._stop_turn, StopReason.LEASE_LOST)
        helpers.start("slice_heartbeats", heartbeats, may_return=True)
        helpers.start("slice_shutdown", self._watch_shutdown, may_return=True)
        helpers.start("slice_results", partial(self._writer.run, on_lost))
        try:
            async with translated():
                end = await self._take_turn()
        finally:
            self._held.drain()
            await helpers.stop()
            self._writer.discard()
            if self._cost is not None:
                self._worker.costs.end(self._cost)
        self._log_turn(end.reason, time.monotonic() - started_at)
        result = self._result(end)
        if result.finished:  # the batch may end before the next regular report
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LAST_REPORT_SECONDS):
                    await self._worker.progress.send()
        return result

    # Stopping

    def cancelled(self) -> None:
        """Stop the attempt, because Temporal's SDK has cancelled the activity.

        The reason is CANCELLED if the batch was cancelled. It is SHUTDOWN if the worker shuts down, or an
        operator pauses or resets the activity. In all other cases, it is LEASE_LOST.
        """
        details = activity.cancellation_details()
        if details is not None and details.cancel_requested:
            self._stop_turn(StopReason.CANCELLED)
        elif activity.is_worker_shutdown() or (details is not None and (details.paused or details.reset)):
            self._stop_turn(StopReason.SHUTDOWN)
        else:
            self._stop_turn(StopReason.LEASE_LOST)

    async def _watch_shutdown(self) -> None:
        await activity.wait_for_worker_shutdown()
        self._stop_turn(StopReason.SHUTDOWN)

    def _stop_turn(self, reason: StopReason) -> None:
        self._stop.set(reason)
        if reason is StopReason.LEASE_LOST:
            self._lease.is_lost = True
        if self._dispatcher is not None:
            self._dispatcher.wake()

    # The turn

    async def _take_turn(self) -> _TurnEnd:
        request, router = self._request, self._worker.router(self._request.model)
        reason = self._stop.reason
        if reason is None and router is None:
            logger.warning("no backend serves the model of this slice", extra=self._fields())
            reason = StopReason.DEFERRED
        if reason is not None or router is None:
            self._writer.restore(await read_stored_results(self._worker.storage, self._folder))
            return _TurnEnd(reason or StopReason.DEFERRED)
        record = await read_slice_record(self._worker.storage, request)
        try:
            while not self._may_read(record):
                await asyncio.sleep(_POLL_SECONDS)
                if (reason := self._stop.reason) is not None:
                    return _TurnEnd(reason)
            return await self._read_and_send(record, router)
        except LeaseLost:
            return _TurnEnd(StopReason.LEASE_LOST)
        finally:
            self._held.release_memory(self._worker.budget)

    def _may_read(self, record: SliceRecord) -> bool:
        """Request memory for the slice's lines. If it is granted, return True: the lines can be read now.

        If several attempts of the slice crashed before they had read the lines, the quarantine lock of the
        process must be free, too. If the lock is not free, keep no memory and return False. The lock is held
        while the process sends a quarantined line, or reads a slice or runs an activity whose earlier
        attempts crashed.
        """
        if self._quarantine.must_prepare_alone and self._worker.quarantine_lock.locked():
            if not self._held.waits_for_memory:  # otherwise, keep its place in the queue
                self._held.release_memory(self._worker.budget)  # other slices may need it,
            self._held.drain()  # and the worker takes others
            return False
        return self._held.reserve_memory(self._worker.budget, record.shard_bytes)

    async def _read_and_send(self, record: SliceRecord, router: ModelRouter) -> _TurnEnd:
        try:
            is_alone = self._quarantine.must_prepare_alone
            async with self._quarantined_preparation() if is_alone else contextlib.nullcontext():
                turn = await self._prepare(record, router)
            self._dispatcher = dispatcher = SliceDispatcher(turn)
            reason = await dispatcher.run()
        except Exception:
            await self._writer.flush()  # keep the results that have arrived, even after an error
            raise
        end = _TurnEnd(reason, turn.queue.wait(), turn.queue.unsettled)
        await self._writer.flush_with_retry(self._may_still_store)
        await self._lease.check()  # if it is lost, the other attempt needs the callbacks of the jobs
        await dispatcher.forget_jobs()
        await self._compact(reason, record.entries)
        return _TurnEnd(StopReason.LEASE_LOST) if self._stop.is_lease_lost else end

    @contextlib.asynccontextmanager
    async def _quarantined_preparation(self) -> AsyncGenerator[None]:
        """Context manager for the preparation (reading the lines) of a slice whose preparations crashed.

        No other quarantined line, preparation or activity of this process runs during the block. A heartbeat
        before the block and another at its end tell the next attempt whether the block crashed.

        Raises:
            ApplicationError (WORKER_CRASHED): too many preparations of the slice have crashed; never retried.
        """
        quarantine = self._quarantine
        if quarantine.history.preparation_crashes >= MAX_PREPARATION_CRASHES:
            logger.error("a slice crashed its workers and was given up", extra=self._fields())
            raise failure(Failure.WORKER_CRASHED, f"{quarantine.history.crashes} workers crashed.")
        async with self._worker.quarantine_lock:
            quarantine.is_preparing = True
            await self._lease.report(self._heartbeat_details())  # Temporal must know before a crash
            try:
                yield
            finally:
                quarantine.is_preparing = False

    async def _prepare(self, record: SliceRecord, router: ModelRouter) -> TurnContext:
        """Store errors for the lines that must not be sent. Return the objects that send the other lines."""
        worker, request, storage = self._worker, self._request, self._worker.storage
        if self._quarantine.may_have_rival:
            await self._store.claim()
        stored = await read_stored_results(storage, self._folder)
        self._writer.restore(stored)
        grouped = worker.settings.plan_order != "file"
        queue = await read_line_queue(storage, request, record, stored, router.prefixes, is_grouped=grouped)
        self._cost = cost = await worker.costs.track(request, self._writer.usage, self._writer.completed)
        outcomes = LineSettler(worker, request, self._writer, router, cost)
        self._quarantine_suspects(queue, outcomes)
        await self._drop_cancelled_calls(queue, outcomes)
        self._quarantine.has_read, self._quarantine.is_preparing = True, False
        if self._quarantine.history.crashes:  # the turn may soon end, or a line may crash the process
            await self._lease.report(self._heartbeat_details())
        return TurnContext(
            worker=worker,
            request=request,
            router=router,
            queue=queue,
            writer=self._writer,
            outcomes=outcomes,
            lease=self._lease,
            stop=self._stop,
            quarantine=self._quarantine,
            pacer=RatePacer(worker.rates, request.model),
            held=self._held,
            cost=cost,
        )

    async def _drop_cancelled_calls(self, queue: LineQueue, outcomes: LineSettler) -> None:
        """Settle the lines of cancelled calls (single requests of clients), so that they are not sent.

        Raises:
            DatabaseUnavailable: the database does not respond.
        """
        worker, request, kept = self._worker, self._request, list[SliceLine]()
        if not request.answers_calls:
            return
        cancelled = await worker.calls.cancelled(request.tenant, request.batch_id)
        if not cancelled:
            return
        while (line := queue.next()) is not None:
            if line.attempt.job is None and outcomes.request(line).custom_id in cancelled:
                outcomes.reject(line, LINE_MESSAGES[LineCode.BATCH_CANCELLED], LineCode.BATCH_CANCELLED)
                queue.settle(line)
            else:
                kept.append(line)
        for line in reversed(kept):
            queue.push_front(line)

    def _quarantine_suspects(self, queue: LineQueue, outcomes: LineSettler) -> None:
        """Quarantine the lines that earlier attempts were sending when their workers crashed.

        Quarantined lines are sent one at a time. If workers crashed `MAX_LINE_CRASHES` times while a line was
        being sent, settle the line with an error instead.
        """
        if not self._quarantine.crashed_markers:
            return
        for line in queue.quarantine(self._quarantine.crashed_markers):
            if line.attempt.crashes >= MAX_LINE_CRASHES:
                outcomes.fail_crashed(line)
                queue.settle_quarantined(line)
            else:
                outcomes.attempts.mark_sending(line, "")

    def _may_still_store(self) -> bool:
        """Return True if the attempt may try again to store its results.

        It may not if the lease is lost, or `LAST_FLUSH_SECONDS` after the grace period of requests in flight.
        After a cancel or a shutdown, this period begins with the stop signal, otherwise with the deadline.
        """
        stop, is_over_cap = self._stop, self._stop.reason is StopReason.OVER_CAP
        remaining = stop.deadline.grace_remaining(time.time()) if is_over_cap else stop.grace_remaining()
        return remaining > -LAST_FLUSH_SECONDS and not stop.is_lease_lost

    async def _compact(self, reason: StopReason, lines: int) -> None:
        """Merge the small segments (stored objects with results) of the slice if there are too many of them.

        - If the slice is finished, its segments are merged if this at least halves their number.
        - If the time of this attempt (turn) is over, the segments are merged if at least
          `_COMPACT_BETWEEN_TURNS` are small.
        - After any other end of the attempt, nothing is merged: finalization may be reading the segments.
        - If workers crashed before this attempt, nothing is merged, because a merge may be the cause.
        """
        is_stopped = self._stop.reason is not None or self._quarantine.is_tracking
        if is_stopped or reason not in (StopReason.COMPLETED, StopReason.TURN_EXPIRED):
            return
        is_finished = reason is StopReason.COMPLETED
        min_segments = 2 * math.ceil(lines / FLUSH_RESULTS) if is_finished else _COMPACT_BETWEEN_TURNS
        try:
            await self._writer.compact(
                min_segments, lambda: self._stop.reason is None and self._lease.is_valid
            )
        except (StorageUnavailable, ObjectMissing) as error:  # the slice keeps its small segments
            logger.info("segments were not compacted", extra={"error": str(error), **self._fields()})

    # Reporting

    def _heartbeat_details(self) -> SliceResult:
        self._reporter.report()
        return self._counts.model_copy(update=self._quarantine.heartbeat_fields())

    @property
    def _counts(self) -> SliceResult:
        return SliceResult(completed=self._writer.completed, failed=self._writer.failed)

    def _log_turn(self, reason: StopReason, seconds: float) -> None:
        fields = {
            "end": reason.name.lower(),
            "slice_completed": self._writer.completed,
            "slice_failed": self._writer.failed,
        }
        if spans := tracing.spans():
            spans.set_attributes(**fields)
        logger.debug("turn ended", extra={**fields, "seconds": seconds})

    def _result(self, end: _TurnEnd) -> SliceResult:
        """Return the activity's result, or raise an error if another attempt must continue the slice.

        In the result, `finished` is True if every line has a stored result.

        Raises:
            ApplicationError (TURN_OVER, DEFERRED): not an error; Temporal must start the next attempt.
            ApplicationError (OWNERSHIP_LOST): another attempt already owns the slice.
        """
        reason = end.reason
        if reason is StopReason.LEASE_LOST:
            raise ApplicationError("another attempt owns the slice", type=Failure.OWNERSHIP_LOST)
        self._reporter.report()
        if reason is StopReason.DEFERRED:
            raise self._reporter.deferral(end.blocked_seconds, end.unsettled)
        another_follows = reason in (StopReason.TURN_EXPIRED, StopReason.SHUTDOWN)
        if self._dispatcher is not None and self._dispatcher.has_sent:
            self._reporter.clear_waiting(another_turn_follows=another_follows)
        if another_follows:
            message = f"slice {self._request.number} continues in its next turn"
            is_held = self._worker.tenant_settings.is_held(self._request.tenant, self._request.model)
            raise next_turn_error(Failure.TURN_OVER, message, _HELD_SECONDS if is_held else 0.001)
        workers = self._worker.count_workers(activity.info().task_queue)
        changes = {"finished": reason is StopReason.COMPLETED, "over_cap": reason is StopReason.OVER_CAP}
        return self._counts.model_copy(update={**changes, "workers": workers})

    def _fields(self) -> dict[str, str | int]:
        request = self._request
        return {"batch_id": request.batch_id, "model": request.model, "slice": request.number}
