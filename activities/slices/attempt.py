"""One attempt of the activity: reading, one turn of sending, keeping, and what the turn's end means."""

import asyncio
import contextlib
import logging
import math
import time
from datetime import UTC, datetime
from functools import partial

from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.errors import translated
from activities.slices.caution import GIVEN_UP_AFTER, Caution, past_of
from activities.slices.ends import End, Stop, next_turn
from activities.slices.judge import Judge
from activities.slices.ownership import Ownership, Word, is_fresh
from activities.slices.sink import FLUSH_RESULTS, LAST_FLUSH_SECONDS, SegmentNames, SegmentSink
from activities.slices.tally import Tally
from activities.slices.telling import Telling
from activities.slices.tools import Tools
from activities.slices.turn import Turn
from activities.slices.work import SliceWork, read_record, read_stored, read_work
from batchwright.contracts.errors import Failure
from batchwright.contracts.execution import SliceRequest, SliceResult
from batchwright.inference.routes import Route
from batchwright.rules import keys
from batchwright.rules.plan import SliceRecord
from batchwright.storage.base import ObjectMissing, StorageUnavailable
from batchwright.telemetry import tracing

logger = logging.getLogger(__name__)
_COMPACT_BETWEEN_TURNS = 8  # segments
_LOOK_AGAIN_SECONDS = 0.1
_LAST_REPORT_SECONDS = 3.0  # a database that hangs keeps no finished slice


class SliceAttempt:
    """Sends in a task of its own, that a cancel of the activity does not reach."""

    def __init__(self, tools: Tools, request: SliceRequest) -> None:
        self._tools, self._request = tools, request
        info = activity.info()
        self._folder = keys.slice_results(request.tenant, request.batch_id, request.safe, request.number)
        names = SegmentNames(self._folder, request.generation, info.attempt)
        self._sink = SegmentSink(tools.storage, tools.budget, tools.metrics, names)
        self._telling = Telling(tools, request, self._sink, info.attempt)
        self._owner = Ownership(tools.beat(), info.heartbeat_timeout)
        self._caution = Caution(past_of(info.attempt, info.heartbeat_details), request.generation)
        self._turn: Turn | None = None
        self._blocked_for = 0.0  # seconds until a line may be asked
        self._unsettled = 0  # lines, once they were read
        self._stop = Stop(
            closes_at=request.closes_at.timestamp(),
            expiry_grace=request.expiry_grace_seconds,
            cancel_grace=request.cancel_grace_seconds,
            drain_grace=max(0.0, tools.settings.drain_seconds - LAST_FLUSH_SECONDS),
        )

    def cancelled(self) -> None:
        """The SDK cancelled the activity: asked for, or the worker goes, or the server gave up on it."""
        details = activity.cancellation_details()
        if details is not None and details.cancel_requested:
            self._end(End.STOPPED)
        elif activity.is_worker_shutdown() or (details is not None and (details.paused or details.reset)):
            self._end(End.DRAINED)
        else:
            self._end(End.LOST)

    async def run(self) -> SliceResult:
        """Raises ApplicationError, as Execution.run_slice says."""
        started = time.monotonic()
        at_once = not is_fresh(activity.info(), datetime.now(UTC))
        helpers = [
            asyncio.create_task(self._owner.run(self._beat, self._heard, at_once=at_once)),
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
        self._tell_turn(end, time.monotonic() - started)
        outcome = self._outcome(end)
        if outcome.finished:  # the batch may end before the next regular report
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LAST_REPORT_SECONDS):
                    await self._tools.progress.send()
        return outcome

    # How it is ended from outside

    def _end(self, end: End) -> None:
        self._stop.set(end)
        if self._turn is not None:
            self._turn.wake()

    def _heard(self, word: Word) -> None:
        self._end({Word.CANCEL: End.STOPPED, Word.GIVE_BACK: End.DRAINED}.get(word, End.LOST))

    async def _watch_shutdown(self) -> None:
        await activity.wait_for_worker_shutdown()
        self._end(End.DRAINED)

    # The turn

    async def _take_turn(self) -> End:
        request, budget = self._request, self._tools.budget
        route = self._tools.route(request.model)
        end = self._stop.now()
        if end is None and route is None:
            logger.warning("no backend serves the model of a slice", extra=self._place())
            end = End.DEFERRED
        if end is not None or route is None:
            self._sink.start_with(await read_stored(self._tools.storage, self._folder))
            return end or End.DEFERRED
        record = await read_record(self._tools.storage, request)
        room = budget.want_shard(record.shard_bytes)
        try:
            while not room.is_held:
                await asyncio.sleep(_LOOK_AGAIN_SECONDS)
                end = self._stop.now()
                if end is not None:
                    return end
            return await self._read_and_send(record, route)
        finally:
            budget.leave(room)

    async def _read_and_send(self, record: SliceRecord, route: Route) -> End:
        storage, request = self._tools.storage, self._request
        stored = await read_stored(storage, self._folder)
        self._sink.start_with(stored)
        work = await read_work(storage, request, record, stored)
        try:
            end = await self._send(work, route)
        except Exception:
            await self._sink.flush()  # what was answered stays settled, whatever broke
            raise
        if end is not End.LOST:
            await self._sink.close(self._may_still_store)
            if self._turn is not None:
                await self._turn.forget_jobs()
            await self._compact(end, record.entries)
        return self._stop.end if self._stop.end is End.LOST else end

    async def _send(self, work: SliceWork, route: Route) -> End:
        tools, request = self._tools, self._request
        judge = Judge(
            request,
            sink=self._sink,
            retries=route.retries,
            metrics=tools.metrics,
            tally=Tally(
                request,
                metrics=tools.metrics,
                traffic=tools.traffic,
                permissions=tools.permissions,
                spend=partial(tools.permissions.spend, request.tenant, request.caller.key_id),
            ),
        )
        self._suspect(work, judge)
        self._turn = Turn(
            tools,
            request,
            route=route,
            work=work,
            judge=judge,
            sink=self._sink,
            owner=self._owner,
            stop=self._stop,
            caution=self._caution,
        )
        end = await self._turn.run()
        self._blocked_for, self._unsettled = work.wait(), work.unsettled
        return end

    def _suspect(self, work: SliceWork, judge: Judge) -> None:
        """What the last attempt was asking when it died; first of all that is written down."""
        for line in work.suspect(self._caution.last_note) if self._caution.last_note else ():
            if line.attempt.crashes >= GIVEN_UP_AFTER:
                judge.crashed(line, work.bytes_of(line))
                work.drop(line)
            else:
                judge.note(line, "")

    def _may_still_store(self) -> bool:
        """Results are worth waiting for a storage that fails, as long as anybody waits for the slice."""
        return self._stop.end is not End.LOST and self._stop.grace_left() > -LAST_FLUSH_SECONDS

    async def _compact(self, end: End, lines: int) -> None:
        """Not when stopped: finalization may be reading the segments already."""
        if end not in (End.FINISHED, End.TURN_OVER) or self._stop.now() is not None:
            return
        # A finished slice's segments are worth it where full ones would be half as many.
        finished = 2 * math.ceil(lines / FLUSH_RESULTS)
        least = finished if end is End.FINISHED else _COMPACT_BETWEEN_TURNS
        try:
            await self._sink.compact(least, lambda: self._stop.now() is None and self._owner.may_send)
        except (StorageUnavailable, ObjectMissing) as error:  # the slice lies in several segments then
            logger.info("segments were not compacted", extra={"error": str(error), **self._place()})

    # What became of it

    def _beat(self) -> SliceResult:
        return self._telling.counts().model_copy(update=self._caution.past._asdict())

    def _tell_turn(self, end: End, seconds: float) -> None:
        sink = self._sink
        counts = {"slice_completed": sink.completed, "slice_failed": sink.failed}
        data = {"end": end.name.lower(), **counts}
        if spans := tracing.spans():
            spans.note(**data)
        logger.debug("a turn is over", extra={**data, "seconds": seconds})

    def _outcome(self, end: End) -> SliceResult:
        if end is End.LOST:
            raise ApplicationError("another attempt owns the slice", type=Failure.OWNERSHIP_LOST)
        counts = self._telling.counts()
        if end is End.DEFERRED:
            raise self._telling.deferral(self._blocked_for, self._unsettled)
        goes_on = end in (End.TURN_OVER, End.DRAINED)
        if self._turn is not None and self._turn.has_sent:
            self._telling.sent(goes_on=goes_on)
        if goes_on:
            message = f"slice {self._request.number + 1} goes on in its next turn"
            raise next_turn(Failure.TURN_OVER, message, 0.001)
        return counts.model_copy(update={"finished": end is End.FINISHED})

    def _place(self) -> dict[str, str | int]:
        request = self._request
        return {"batch_id": request.batch_id, "model": request.model, "slice": request.number}
