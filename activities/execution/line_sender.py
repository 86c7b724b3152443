"""Send the lines of one slice attempt. Each line needs a permit, the right to have one request in flight.

To save CPU time, most lines need no asyncio task. The event loop calls functions that await nothing. These
functions send the lines, and handle the responses to them.
"""

import asyncio
import math
import time
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial

from batchwright.activities.clock import SUSPEND_AWARE_CLOCK
from batchwright.activities.execution.line_settlement import InFlightRequest
from batchwright.activities.execution.request_tasks import RequestTasks
from batchwright.activities.execution.slice_state.line_quarantine import TRACKED_BATCH_SIZE
from batchwright.activities.execution.slice_state.line_queue import PromptCost, SliceLine, SubmittedJob
from batchwright.activities.execution.turn_context import TurnContext
from batchwright.activities.services.send_authorization import LineAuthorizer
from batchwright.contracts.terms import Endpoint
from batchwright.inference.limits.concurrency_limiter import Permit, PermitRequest
from batchwright.inference.request_outcome import Outcome
from batchwright.inference.router import Dispatch
from batchwright.rules.dispatch.retry_policy import SUCCESS
from batchwright.telemetry import tracing

# If the next line has a system prompt that no slot has, its permit stays free for so long. Meanwhile lines
# that were sent at the same moment reach the slots that have their prompts: a backend that has several free
# slots could otherwise give one of these to the new prompt.
_KEEP_SLOTS_SECONDS = 0.01
# A worker gets the slices of a batch one after the other. For so long after its start, a slice sends no lines
# that would compute a system prompt a second time, because later slices probably have other prompts.
_WAIT_FOR_SLICES_SECONDS = 0.1


class LineSender:
    """The sender of one turn (attempt of a slice): it sends one line for each permit.

    When a permit (the right to have one request in flight) is free, `_on_permit` sends the next line. Most
    lines need no task: `_try_send_now` sends the request, and the callback `_on_response` settles the line
    (gives it its final result). A task for each request would cost more CPU time than all other work for the
    request. A line gets a task (`RequestTasks`) only if it must await more than its response, such as a hook.

    Attributes:
        tasks: sends the lines that need an asyncio task.
        started_at: when the first line was sent, in monotonic seconds; None before that.
        is_exclusive: True while a quarantined line is in flight. No other line is sent then.
        must_track: True if the next lines must be recorded in storage before they are sent, because workers
            crashed during earlier attempts of the slice.
    """

    def __init__(self, turn: TurnContext) -> None:
        worker, request = turn.worker, turn.request
        self._worker, self._request, self._tenant = worker, request, request.tenant
        self._limiter, self._permissions, self._budget = worker.permits, worker.permissions, worker.budget
        self._router, self._queue, self._writer = turn.router, turn.queue, turn.writer
        self._outcomes, self._lease, self._stop = turn.outcomes, turn.lease, turn.stop
        self._quarantine, self._pacer, self._state = turn.quarantine, turn.pacer, turn.state
        self._held, self._cost, self._endpoint = turn.held, turn.cost, request.endpoint
        self._authorizer = LineAuthorizer(worker.permissions, worker.metrics, request)
        self._permit_request = self._new_permit_request(request.priority)
        self._headers, self._chat_label = turn.headers, turn.chat_label
        # Hooks and trace spans enclose a request, so a task awaits it.
        self._always_awaits = bool(worker.hooks) or tracing.spans() is not None
        self.tasks = RequestTasks(turn, self._complete)
        self.started_at: float | None = None
        self.is_exclusive = self.must_track = False
        self._opened_at = time.monotonic()
        self._waits_since: float | None = None  # time of the first wait since the last line was sent
        self._wake_timer: asyncio.TimerHandle | None = None  # runs while a line waits for its system prompt

    def can_dispatch(self, now: float) -> bool:
        """Return True if nothing (such as a rate limit or an ended lease) forbids another request now.

        Args:
            now: the monotonic time in seconds.
        """
        now_suspend_aware = time.clock_gettime(SUSPEND_AWARE_CLOCK)
        return (
            now <= self._writer.flush_overdue_at
            and now_suspend_aware < self._lease.valid_until
            and now_suspend_aware <= self._permissions.fresh_until
            and (self._cost is None or not self._cost.is_over_cap)
            and not self._router.wait_seconds(self._tenant)
            and self._pacer.may_send()
            and (not self._quarantine.is_tracking or len(self._state.in_flight) < TRACKED_BATCH_SIZE)
        )

    def may_send_now(self) -> bool:
        """Return True if a line may be sent now.

        The result is True if lines are left, this attempt of the slice does not have to stop, and
        `can_dispatch` returns True. The result can change between two sends, so call this before each.
        """
        return (
            time.time() < self._stop.sends_until
            and self._state.error is None
            and self._queue.unsettled > 0
            and not self._held.is_yielding
            and self.can_dispatch(time.monotonic())
        )

    # Permits

    def queue_next(self) -> None:
        """Request a permit (right to have one request in flight) for the next line, unless it must wait.

        If a permit is free, the line is sent at once. In two cases, the line must wait in the queue of lines:

        - Workers crashed earlier, and the line is not recorded in storage. `must_track` becomes True.
        - The line needs a slot that has its system prompt (`_must_wait`).
        """
        line = None if self.is_exclusive else self._queue.next()
        if line is None:
            return
        quarantine, prefixes = self._quarantine, self._router.prefixes
        if quarantine.is_tracking and line.attempt.sending_attempt != quarantine.marker:
            self._queue.push_front(line)
            self.must_track = True
        elif prefixes.slots and self._limiter.free(self._request.model) > 0 and self._must_wait(line):
            self._queue.push_front(line)
        else:
            self._state.waiting_line = line
            self._limiter.enqueue(self._permit_request)

    def _must_wait(self, line: SliceLine) -> bool:
        """Return True if the line must wait for a slot that has its system prompt.

        If so, also wake the slice soon. A slot is a place for one request at a backend, and keeps the prompt
        of its last request. Any other slot must compute the line's prompt again. A line waits in two cases:

        - The slice has just begun. Other slices, which may have other prompts, get the free permits first.
        - Few lines with this prompt are left. Another slot would save less time than it needs for the prompt.
        """
        has_slots = self._router.prefixes.slots and not self._quarantine.is_tracking
        if self.is_exclusive or not has_slots or self._queue.prompt_cost(line) < PromptCost.SECOND_COPY:
            return False
        now = time.monotonic()
        if self._request.slices == 1 or now >= self._opened_at + _WAIT_FOR_SLICES_SECONDS:
            if self._waits_since is None:
                self._waits_since = now
            if now >= self._waits_since + self._queue.slot_wait_seconds(line):
                return False
        if self._wake_timer is None:
            self._wake_timer = asyncio.get_running_loop().call_later(_KEEP_SLOTS_SECONDS, self._look_again)
        return True

    def _look_again(self) -> None:
        self._wake_timer = None
        self._state.wake.set()

    @contextmanager
    def sending_alone(self, line: SliceLine) -> Generator[None]:
        """Context manager that requests a permit for a quarantined line.

        If a permit is free, the line is sent at once. In the `with` block, the slice sends no other line.
        """
        self.is_exclusive = True
        try:
            self._state.waiting_line = line
            self._limiter.enqueue(self._permit_request)
            yield
        finally:
            self.is_exclusive = False

    def cancel_permit_request(self) -> None:
        """Withdraw the request for a permit, and put its line back at the front of the queue of lines."""
        line, self._state.waiting_line = self._state.waiting_line, None
        if line is not None:
            self._limiter.cancel(self._permit_request)
            self._queue.push_front(line)

    def _on_permit(self, permit: Permit) -> None:
        """Send the waiting line, because it got a permit. Then request a permit for the next line.

        A permit is the right to have one request in flight. The limiter may call this method while code of
        another slice runs. So the method must not raise or log.
        """
        state = self._state
        line, state.waiting_line = state.waiting_line, None
        assert line is not None
        try:
            if not self._quarantine.is_tracking:
                line = self._queue.reselect(line)
            if not self.may_send_now():
                permit.release()
                self._queue.push_front(line)
            elif self._must_wait(line):
                permit.release()
                self._queue.push_front(line)
                return  # without a wake-up, which would at once request a permit again
            elif self._permissions.version != self._authorizer.allowed_version and self.reject_if_denied(
                line
            ):
                permit.release()
                self.queue_next()
            elif self._submit(line, permit):
                if self.started_at is None:
                    self.started_at = time.monotonic()
                self.queue_next()
        except Exception as error:
            permit.release()
            state.error = error
        if state.waiting_line is None:
            state.wake.set()

    def _prompt_cost(self) -> float:
        """Return how much work the line that waits for a permit causes in prefix caches (`PromptCost`).

        The slice with the lowest cost gets the next permit. If the number of lines in flight with the same
        system prompt is not limited, the cost is 0 for all slices.
        """
        line = None if self.is_exclusive else self._state.waiting_line
        has_width = self._router.prefixes.width < math.inf
        return self._queue.prompt_cost(line) if line is not None and has_width else 0

    def follow_priority(self) -> None:
        """Use the batch's new priority if an operator has changed it.

        The slice then waits for permits with this priority. Requests in flight are not affected.
        """
        request, before = self._request, self._permit_request
        priorities = self._limiter.limits.tenant_settings.ranks(request.model).priorities
        priority = priorities.get(request.batch_id, before.priority)
        if priority != before.priority and not self.is_exclusive:
            self.cancel_permit_request()
            self._permit_request = self._new_permit_request(priority)
            before.detach()

    def _new_permit_request(self, priority: int) -> PermitRequest:
        request = self._request
        return PermitRequest(
            model=request.model,
            tenant=request.tenant,
            weight=request.weight,
            batch_id=request.batch_id,
            number=request.number,
            on_granted=self._on_permit,
            key_id=request.caller.key_id,
            priority=priority,
            cost=self._prompt_cost,
        )

    # Lines that may no longer be sent

    def reject_waiting_line(self) -> None:
        """If the line that waits for a permit may no longer be sent, settle this line with an error.

        The next lines are settled in the same way, up to the first line that may be sent.
        """
        line = self._state.waiting_line
        if line is None or not self._authorizer.denial_reason(has_job=line.attempt.job is not None):
            return
        self.cancel_permit_request()
        while (line := self._queue.next()) is not None and self.reject_if_denied(line):
            pass
        if line is not None:
            self._queue.push_front(line)

    def reject_if_denied(self, line: SliceLine) -> bool:
        """Settle a line with an error if it may no longer be sent.

        Return True if the line was settled, False if it may be sent.
        """
        reason = self._authorizer.denial_reason(has_job=line.attempt.job is not None)
        if reason:
            self._outcomes.reject(line, reason)
            self._queue.settle(line)
            self._state.wake.set()
        return bool(reason)

    # Requests

    def _submit(self, line: SliceLine, permit: Permit) -> bool:
        """Send the line and return True. If no backend may get it now, put the line back and return False.

        The permit is released when the request ends. If the result is False, the permit is already released.

        Raises:
            PlanDamaged: the line cannot be read.
        """
        request = self._outcomes.request(line)
        job = line.attempt.job
        dispatch = None if job is None else self._resume_job(line, job)
        if dispatch is None:
            dispatch = self._router.select(
                line.prefix_hash,
                tenant=self._tenant,
                avoid=line.failed_upstream,
                is_full=self._worker.permits.backends.is_full,
                is_used_up=self._worker.permits.backends.has_used_share,
            )
        if dispatch is None:
            permit.release()
            self._queue.requeue(line)
            return False
        line_bytes = len(line.data)
        if line.attempt.job is None:
            self._pacer.record_send()
            permit.charge(line_bytes)
        permit.place(dispatch.upstream.backend.url)
        held = self._budget.reserve_response(line_bytes)
        sent = InFlightRequest(line, request, permit, dispatch, line_bytes, held)
        self._state.in_flight.add(sent)
        self._router.prefixes.record_sent(line.prefix_group)
        self._waits_since = None
        try:
            if not self._try_send_now(sent):
                self.tasks.submit(sent)
        except BaseException:
            self._complete(sent)
            raise
        return True

    def _try_send_now(self, sent: InFlightRequest) -> bool:
        line, dispatch, request = sent.line, sent.dispatch, sent.request
        attempt, upstream = line.attempt, dispatch.upstream
        if attempt.job is not None or attempt.no_response or upstream.jobs is not None:
            return False
        if self._always_awaits or self.tasks.is_microbatched(upstream.model):
            return False
        line.backend_verified = False
        sent.exchange = self._router.try_send_now(
            dispatch,
            self._endpoint,
            request.body,
            request.request_id,
            self._headers,
            partial(self._on_response, sent),
        )
        return sent.exchange is not None

    def _on_response(self, sent: InFlightRequest, outcome: Outcome) -> None:
        """Handle the response to a request that was sent without a task of its own.

        If the request failed, or if the backend's circuit breaker is open, start a task that handles the
        response. Otherwise, settle the line at once. This method must not raise or log, because the HTTP
        connection calls it outside any task.
        """
        upstream, sent.exchange = sent.dispatch.upstream, None
        try:
            sent.seconds = upstream.circuit.clock() - sent.dispatch.attempt.sent_at
            url = upstream.backend.url
            self._outcomes.metrics.request_ended(url, outcome, sent.seconds, self._chat_label)
            if upstream.model != self._router.model or self._endpoint is Endpoint.EMBEDDINGS:
                outcome = self._router.finalize_response(upstream, self._endpoint, sent.request.body, outcome)
            self._outcomes.observe(sent, outcome)
            if not self._stop.is_lease_lost:
                if outcome.verdict is not SUCCESS or upstream.circuit.is_open:
                    sent.outcome = outcome
                    self.tasks.submit(sent)
                    return
                self._outcomes.settle_success(sent, outcome, sent.seconds)
                self._queue.settle(sent.line)
        except Exception as error:
            self._state.fail(error)
        self._complete(sent)

    def _complete(self, sent: InFlightRequest) -> None:
        """Free the memory of a request that has ended, and release its permit for the next waiting line.

        If the backends keep only few system prompts, and all waiting lines need other prompts, the permit is
        released 10 ms later. Meanwhile, a line whose prompt is kept may arrive. It then gets the permit.
        """
        self._state.in_flight.discard(sent)
        self._budget.response_bytes -= sent.held
        sent.dispatch.end()
        prefixes = self._router.prefixes
        prefixes.record_end(sent.line.prefix_group)
        if prefixes.must_keep_slots and self._limiter.lowest_cost(self._request.model):
            asyncio.get_running_loop().call_later(_KEEP_SLOTS_SECONDS, sent.permit.release)
        else:
            sent.permit.release()
        if self._state.waiting_line is None:
            self._state.wake.set()

    def _resume_job(self, line: SliceLine, job: SubmittedJob) -> Dispatch | None:
        """Return a `Dispatch` (request in flight) to the backend at which the line already runs as a job.

        If that backend is no longer configured, forget the job and return None.
        """
        found = self._router.resume(job.upstream, self._tenant)
        if found is None:
            self._outcomes.attempts.forget_job(line)
        return found

    async def cancel_all(self) -> None:
        """Cancel all requests in flight, and free their memory and their permits (rights to be in flight).

        No line can be sent afterwards.
        """
        in_flight = self._state.in_flight
        for sent in in_flight:
            if sent.exchange is not None:
                sent.exchange.cancel()
        await self.tasks.cancel_all()
        for sent in list(in_flight):
            self._complete(sent)
        self._permit_request.detach()
