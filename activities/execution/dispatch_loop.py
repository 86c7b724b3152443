"""The loop that runs during one attempt of a slice (turn): it sends the lines, and ends the turn."""

import asyncio
import math
import time

from batchwright.activities.execution.line_sender import LineSender
from batchwright.activities.execution.slice_state.line_quarantine import TRACKED_BATCH_SIZE
from batchwright.activities.execution.slice_state.line_queue import SliceLine
from batchwright.activities.execution.slice_stop_signal import StopReason
from batchwright.activities.execution.turn_context import TurnContext
from batchwright.rules.limits.rate_allocation import ALL_MODELS

MAX_BLOCKED_SECONDS = 3.0  # a slice that can send nothing for longer releases its slot
# Backends with few slots keep one system prompt in each. So a worker needs the prefix groups in the slots and
# as many that follow. Therefore it holds up to this many slices, unless all lines are of the same group.
_MOST_SLICES_FOR_GROUPS = 16
# Between two quarantined lines of the process. Activities and preparations poll the lock every 0.1 s.
_LOCK_PAUSE_SECONDS = 0.2
_TICK_SECONDS = 0.25


class SliceDispatcher:
    """The loop that sends the lines of a slice during one turn (one attempt, limited in time).

    The loop in `run` does three things:

    - If no line waits for a permit (the right to have one request in flight), request a permit for the next
      line. When the permit is granted, `LineSender` sends the line.
    - Send the quarantined lines (lines that may crash a worker).
    - End the turn.
    """

    def __init__(self, turn: TurnContext) -> None:
        worker, request = turn.worker, turn.request
        self._turn, self._limiter, self._request = turn, worker.permits, request
        self._router, self._queue, self._writer = turn.router, turn.queue, turn.writer
        self._outcomes, self._stop = turn.outcomes, turn.stop
        self._quarantine, self._pacer, self._state = turn.quarantine, turn.pacer, turn.state
        self._demand, self._held, self._cost = worker.demand, turn.held, turn.cost
        self._sender = LineSender(turn)
        self._jobs = self._sender.tasks.jobs
        self._opened_at = time.monotonic()
        self._ticker: asyncio.TimerHandle | None = None

    @property
    def has_sent(self) -> bool:
        return self._sender.started_at is not None

    async def run(self) -> StopReason:
        """Send lines until this attempt (turn) has to end, and return the reason.

        No request is in flight afterwards.

        Raises:
            PlanDamaged: a line cannot be read.
        """
        self._demand.lines_read(self._held, self._queue.unsettled, self._count_ready)
        self._tick()
        try:
            reason = await self._drain(await self._dispatch())
        finally:
            await self._close()
        if self._state.error is not None:
            raise self._state.error
        return reason

    def wake(self) -> None:
        """Make the loop in `run` check now whether it has to stop, before its next regular check."""
        if not self._sender.may_send_now():
            self._sender.cancel_permit_request()
        self._state.wake.set()

    async def forget_jobs(self) -> None:
        """Delete the stored callbacks for the jobs of this attempt.

        A callback is the HTTP request with which a backend reports the end of a job. Call this only after the
        results of these jobs are stored.
        """
        await self._jobs.forget()

    # The loop

    async def _dispatch(self) -> StopReason:
        while True:
            if (reason := self._stop_reason()) is not None:
                self._sender.cancel_permit_request()
                self._leave_quarantine_order()
                return reason
            if self._state.waiting_line is None and self._sender.can_dispatch(time.monotonic()):
                self._sender.queue_next()
            if self._sender.must_track:
                await self._track_next_lines()
            elif not await self._send_quarantined():
                await self._rest(min(self._blocked_seconds() or _TICK_SECONDS, _TICK_SECONDS))

    async def _drain(self, reason: StopReason) -> StopReason:
        """Wait for the requests in flight, and return why this attempt (turn) of the slice ends.

        After the deadline, and also after a stop signal, the requests may continue for a grace period. The
        wait ends at the latest when the first of these two periods is over. If the lease is lost, there is no
        wait.

        - If all lines have a result and the lease is not lost, the result is COMPLETED.
        - If there was a stop signal before or during this call, the result is the reason of the signal.
        - In all other cases, the result is `reason`, the reason why the sending stopped.
        """
        self._held.drain()
        self._queue.free_lines(sent.line for sent in self._state.in_flight)
        self._free_memory()
        while self._state.in_flight:
            reason = self._stop.reason or reason
            remaining = self._stop.grace_remaining()
            if reason is StopReason.SHUTDOWN or self._held.is_yielding:
                self._jobs.release()
            if remaining <= 0:
                await self._jobs.cancel()
                break
            await self._rest(min(remaining, _TICK_SECONDS))
        reason = self._stop.reason or reason
        all_settled = reason is not StopReason.LEASE_LOST and not self._queue.unsettled
        return StopReason.COMPLETED if all_settled else reason

    async def _close(self) -> None:
        if self._ticker is not None:
            self._ticker.cancel()
        self._sender.cancel_permit_request()
        self._leave_quarantine_order()
        await self._sender.cancel_all()
        self._outcomes.metrics.flush()

    def _tick(self) -> None:
        try:
            self._sender.reject_waiting_line()
        except Exception as error:
            self._state.error = error
        if self._cost is not None and self._cost.ends_batch and self._queue.unsettled:
            self._stop.set(StopReason.OVER_CAP)
        self._sender.follow_priority()
        self.wake()
        self._free_memory()
        self._outcomes.metrics.flush()
        self._limiter.refresh(self._request.model)
        self._ticker = asyncio.get_running_loop().call_later(_TICK_SECONDS, self._tick)

    def _free_memory(self) -> None:
        """Release the reserved memory of the slice, except the memory of lines that may still be sent."""
        if self._held.memory is not None:
            self._turn.worker.budget.shrink(self._held.memory, self._queue.bytes)

    async def _rest(self, seconds: float) -> None:
        """Wait until the event `TurnState.wake` is set, but at most `seconds`. Then clear the event.

        The event is set when the loop in `run` has something to do. If it is already set when the wait
        begins, return at once.
        """
        timer = asyncio.get_running_loop().call_later(seconds, self._state.wake.set)
        try:
            await self._state.wake.wait()
        finally:
            timer.cancel()
            self._state.wake.clear()

    # Checks

    def _stop_reason(self) -> StopReason | None:
        if (reason := self._stop.reason) is not None:
            return reason
        if not self._queue.unsettled or self._state.error is not None:
            return StopReason.COMPLETED  # `run` raises the error, when the requests in flight have ended
        if (
            self._is_time_over()
            or self._pacer.is_exhausted
            or not self._turn.worker.has_share(self._request.model)
        ):
            return StopReason.TURN_EXPIRED
        is_blocked = not self._state.in_flight and self._blocked_seconds() > MAX_BLOCKED_SECONDS
        return StopReason.DEFERRED if is_blocked else None

    def _is_time_over(self) -> bool:
        """Return True if this attempt has used up its time and another slice waits to run on this worker.

        - If the attempt has sent a line, its time ends `slice_seconds` after the first line.
        - If the attempt has not sent a line yet, its time ends `slice_seconds` or `MAX_BLOCKED_SECONDS` after
          its start, whichever is later.
        - If a limit (such as a cap of the tenant) now stops the lines of the attempt, and the other slices of
          this worker can use up this limit, the time ends at the latest `MAX_BLOCKED_SECONDS` after the start
          of the attempt.
        """
        now = time.monotonic()
        if self._sender.started_at is None:
            left = max(self._request.slice_seconds, MAX_BLOCKED_SECONDS) - (now - self._opened_at)
        else:
            left = self._request.slice_seconds - (now - self._sender.started_at)
        is_over = left <= 0 or (now - self._opened_at >= MAX_BLOCKED_SECONDS and self._others_use_up_limit())
        return is_over and self._demand.decide_yield(self._held)

    def _others_use_up_limit(self) -> bool:
        request = self._request
        limit = self._limiter.limit_reached(request.model, request.tenant, request.caller.key_id)
        return limit is not None and self._demand.others_use_up_limit(self._held, limit)

    def _count_ready(self) -> int:
        """Return how many lines of the slice could be sent now if more requests were allowed in flight.

        If this number is low, the worker takes another slice from Temporal's task queue. While lines of this
        slice have to wait, lines of another slice could be sent. So lines are not counted in these cases:

        - If a cap or a rate of the tenant stops this slice, no line is counted.
        - If a rate of the model stops this slice, and the slice came from the task queue that several models
          share, no line is counted.
        - If a prefix group (lines with the same system prompt) has as many lines in flight as the model
          allows, the other lines of the group are not counted.

        If the worker already holds many slices of the tenant, another slice would not help. Then the lines
        are counted in these cases, too.
        """
        if self._sender.is_exclusive or self._held.is_yielding:
            return 0
        model = self._request.model
        is_held = self._limiter.is_capped(model, self._request.tenant) or (
            self._held.queue == ALL_MODELS and self._limiter.is_model_limited(model)
        )
        due, prefixes = self._queue.due, self._router.prefixes
        if is_held and self._demand.holds_few_of_tenant(self._held):
            due = 0
        elif prefixes.width < math.inf and self._demand.holds_few_of_tenant(
            self._held, min(2 * prefixes.slots, _MOST_SLICES_FOR_GROUPS) if prefixes.has_several else 0
        ):
            due = self._queue.due_outside_full_groups
        ready = min(due, self._pacer.remaining())
        if self._quarantine.is_tracking:
            ready = min(ready, TRACKED_BATCH_SIZE - len(self._state.in_flight))
        return int(max(0, ready))

    def _blocked_seconds(self) -> float:
        """Return the seconds until a line may be sent; 0 if a line may be sent now.

        Lines may have to wait for a retry, for a circuit breaker, or for the rate limit.
        """
        return max(self._queue.wait(), self._router.wait_seconds(self._request.tenant), self._pacer.delay())

    # Lines that may crash a worker

    async def _track_next_lines(self) -> None:
        """Record in storage which lines will be sent next.

        If the worker crashes, one of these lines may be the cause. The next attempt therefore quarantines
        these lines: it sends them one at a time.
        """
        self._sender.must_track = False
        self._leave_quarantine_order()
        lines: list[SliceLine] = []
        while len(lines) < TRACKED_BATCH_SIZE and (line := self._queue.next()) is not None:
            lines.append(line)
        await self._mark_sending(*lines)
        for line in reversed(lines):
            self._queue.push_front(line)

    async def _send_quarantined(self) -> bool:
        """Send the next quarantined line, wait for its outcome, and return True.

        A quarantined line may have crashed a worker. So it is sent alone: no other line of the slice is in
        flight, and no other slice of this process is sending a quarantined line.

        - If the line is no longer allowed to be sent, settle the line with an error and return True.
        - If no quarantined line can be sent now, for example because another slice is next, return False.
        - If the line gets no permit within `MAX_BLOCKED_SECONDS`, return False, so that other slices can send
          their quarantined lines.
        """
        state, worker = self._state, self._turn.worker
        lock, order = worker.quarantine_lock, worker.quarantine_order
        is_busy = state.in_flight or state.waiting_line or not self._sender.can_dispatch(time.monotonic())
        line = None if is_busy else self._queue.pop_quarantined()
        if line is None:
            self._leave_quarantine_order()
            return False
        if not order.is_next(self._request.batch_id, state.wake) or lock.locked():
            self._queue.push_front(line)
            return False
        if self._sender.reject_if_denied(line):
            return True
        is_blocked = False
        async with lock:
            await self._mark_sending(line)
            waits_until = time.monotonic() + MAX_BLOCKED_SECONDS
            with self._sender.sending_alone(line):
                while (state.waiting_line or state.in_flight) and self._stop.reason is None:
                    if state.waiting_line and time.monotonic() >= waits_until:
                        self._sender.cancel_permit_request()
                        self._outcomes.attempts.mark_sending(line, "")  # a crash is not its fault
                        is_blocked = True
                    else:
                        await self._rest(_TICK_SECONDS)
        await asyncio.sleep(_LOCK_PAUSE_SECONDS)
        self._leave_quarantine_order(has_sent=True)
        return not is_blocked

    def _leave_quarantine_order(self, *, has_sent: bool = False) -> None:
        order = self._turn.worker.quarantine_order
        order.leave(self._request.batch_id, self._state.wake, has_sent=has_sent)

    async def _mark_sending(self, *lines: SliceLine) -> None:
        for line in lines:
            self._outcomes.attempts.mark_sending(line, self._quarantine.marker)
        await self._writer.flush_with_retry(lambda: self._stop.reason is None)
