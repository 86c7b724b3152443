"""Requests of one turn: send a line that has a permit, and apply the outcome to the line."""

import time
from collections.abc import Sequence
from functools import partial

from msgspec.structs import replace

from batchwright.activities.execution.jobs import JobRunner
from batchwright.activities.execution.line_queue import SliceLine
from batchwright.activities.execution.line_settlement import InFlightRequest, OutboundRequest
from batchwright.activities.execution.task_pool import TaskPool
from batchwright.activities.execution.turn_context import TurnContext
from batchwright.activities.services.backend_jobs import forwarded_headers
from batchwright.contracts.model_registry.registry_config import LimitConfig
from batchwright.contracts.terms import Endpoint
from batchwright.inference.backend_client import RequestSender
from batchwright.inference.circuit_reports import report_probe_success
from batchwright.inference.hooks import HookCall
from batchwright.inference.limits.concurrency_limiter import Permit
from batchwright.inference.probes import ProbeResult
from batchwright.inference.request_outcome import Outcome
from batchwright.inference.router import Dispatch
from batchwright.inference.upstream import Upstream
from batchwright.rules.dispatch.retry_policy import DEFERRED, SUCCESS
from batchwright.telemetry import tracing
from batchwright.telemetry.backend_traffic import CHAT, GROUPED_CHAT


class RequestExecutor:
    """Sends the lines that have got a permit, the right to have one request in flight.

    `submit` sends a line in one of two ways. On the fast path, nothing is awaited: the request is sent at
    once, and the callback that reads the response handles it (`_try_send_now`, `_on_response`). All other
    lines run in a task of the pool (`_execute`): lines with hooks, jobs, microbatches or trace spans, and
    lines whose request on the fast path failed. The fast path saves CPU time, because a task for each request
    would cost more than all other work for the request.
    """

    def __init__(self, turn: TurnContext) -> None:
        self._turn, self._worker, self._request = turn, turn.worker, turn.request
        self._router, self._queue, self._outcomes = turn.router, turn.queue, turn.outcomes
        self._stop, self._pacer, self._state = turn.stop, turn.pacer, turn.state
        self._budget, self._endpoint = turn.worker.budget, turn.request.endpoint
        self.jobs = JobRunner(turn)
        self._headers, self._has_hooks = (
            forwarded_headers(turn.request.endpoint, turn.request.caller),
            bool(turn.worker.hooks),
        )
        # Hooks and trace spans enclose a request, so a task awaits it.
        self._always_awaits = self._has_hooks or tracing.spans() is not None
        self._microbatched: dict[str, bool] = {}  # by model: the slice's model and its fallbacks
        self._chat_label = CHAT if self._endpoint is Endpoint.CHAT_COMPLETIONS else ""
        self._pool = TaskPool(self._execute, self._complete)

    def submit(self, line: SliceLine, permit: Permit) -> bool:
        """Send the line and return True. If no backend may get it now, requeue it and return False.

        The permit is released when the request ends. If the result is False, the permit is already released.

        Raises:
            PlanDamaged: the line cannot be read.
        """
        request = self._outcomes.request(line)
        dispatch = None if line.attempt.job is None else self._resume_job(line)
        if dispatch is None:
            dispatch = self._router.select(
                line.prefix_hash,
                tenant=self._request.tenant,
                avoid=line.failed_upstream,
                is_full=self._worker.permits.backends.is_full,
                is_used_up=self._worker.permits.backends.has_used_share,
            )
        if dispatch is None:
            permit.release()
            self._queue.requeue(line)
            return False
        if line.attempt.job is None:
            self._pacer.record_send()
            permit.charge(len(line.data))
        permit.place(dispatch.upstream.backend.url)
        held = self._budget.reserve_response(len(line.data))
        sent = InFlightRequest(line, request, permit, dispatch, held)
        self._state.in_flight.add(sent)
        self._router.prefixes.start(line.prefix_group)
        try:
            if not self._try_send_now(sent):
                self._pool.submit(sent)
        except BaseException:
            self._complete(sent)
            raise
        return True

    async def cancel_all(self) -> None:
        """Cancel all requests in flight, and free their memory and their permits (rights to be in flight).

        Do not call `submit` afterwards.
        """
        in_flight = self._state.in_flight
        for sent in in_flight:
            if sent.exchange is not None:
                sent.exchange.cancel()
        await self._pool.cancel_all()
        for sent in list(in_flight):
            self._complete(sent)

    def _resume_job(self, line: SliceLine) -> Dispatch | None:
        """Return a Dispatch to the backend at which the line already runs as a job.

        If that backend is no longer configured, forget the job and return None.
        """
        job = line.attempt.job
        assert job is not None
        found = self._router.resume(job.upstream, self._request.tenant)
        if found is None:
            self._outcomes.attempts.forget_job(line)
        return found

    def _complete(self, sent: InFlightRequest) -> None:
        """Free the memory and the permit of a request that has ended.

        When its permit is free, the next waiting line is sent.
        """
        self._state.in_flight.discard(sent)
        self._budget.response_bytes -= sent.held
        sent.dispatch.end()
        self._router.prefixes.end(sent.line.prefix_group)
        sent.permit.release()
        if self._state.waiting_line is None:
            self._state.wake.set()

    # Without a task

    def _try_send_now(self, sent: InFlightRequest) -> bool:
        line, dispatch, request = sent.line, sent.dispatch, sent.request
        attempt, upstream = line.attempt, dispatch.upstream
        if attempt.job is not None or attempt.no_response or upstream.jobs is not None:
            return False
        if self._always_awaits or self._is_microbatched(upstream.model):
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
        """Handle a response of the fast path. A success settles the line at once.

        A failure, or a response that arrives while the circuit is open, is handled in a task. This method
        must not raise or log, because it runs in a callback outside any task.
        """
        upstream, sent.exchange = sent.dispatch.upstream, None
        try:
            sent.seconds = upstream.circuit.clock() - sent.dispatch.attempt.sent_at
            url = upstream.backend.url
            self._outcomes.metrics.request_ended(url, outcome, sent.seconds, self._chat_label)
            if upstream.model != self._router.model or self._endpoint is Endpoint.EMBEDDINGS:
                outcome = self._router.finalize_response(upstream, self._endpoint, sent.request.body, outcome)
            self._observe(sent, outcome)
            if not self._stop.is_lease_lost:
                if outcome.verdict is not SUCCESS or upstream.circuit.is_open:
                    sent.outcome = outcome
                    self._pool.submit(sent)
                    return
                self._outcomes.settle_success(sent, outcome, sent.seconds)
                self._queue.settle(sent.line)
        except Exception as error:
            self._state.fail(error)
        self._complete(sent)

    # In a task

    async def _execute(self, sent: InFlightRequest) -> None:
        line = sent.line
        try:
            if line.attempt.job is not None:
                outcome = await self._follow_job(sent)
            else:
                outcome = await self._send_until_accepted(sent)
            if not self._stop.is_lease_lost:
                await self._probe_if_in_doubt(sent, outcome)
            if self._stop.is_lease_lost:
                return
            if self._outcomes.apply(sent, outcome):
                self._queue.settle(line)
            else:
                line.failed_upstream = sent.dispatch.upstream
                self._queue.requeue(line)
        except Exception as error:
            self._state.fail(error)

    async def _follow_job(self, sent: InFlightRequest) -> Outcome:
        job = sent.line.attempt.job
        assert job is not None
        sent.job_since = job.since
        outcome = await self.jobs.follow(sent.line, sent.request, sent.dispatch)
        if not self._stop.is_lease_lost:
            seconds = max(time.time() - job.since, 0.0)
            self._count_unless_running(sent, outcome, seconds, self._chat_label)
        return outcome

    async def _send_until_accepted(self, sent: InFlightRequest) -> Outcome:
        """Send the line to one backend after another until a backend accepts it. Return the outcome.

        A backend that is unavailable or rejects Batchwright's API key has not accepted the line. If no
        backend accepts it, the outcome at the last backend is returned.
        """
        request: OutboundRequest | Outcome = sent.request
        if self._has_hooks:
            request = await self._call_hooks(sent.request)
        refused: list[Upstream] = []
        outcome = sent.outcome  # set if the request was already sent, without a task
        while True:
            if outcome is None:
                outcome = request if isinstance(request, Outcome) else await self._send(sent, request)
                self._observe(sent, outcome)
            if self._stop.is_lease_lost or outcome.verdict.budget not in DEFERRED:
                return outcome
            refused.append(sent.dispatch.upstream)
            if not self._pass_on(sent, outcome, refused):
                return outcome
            outcome = None

    async def _call_hooks(self, request: OutboundRequest) -> OutboundRequest | Outcome:
        """Call the operator's hooks for the request. Return the request as the hooks changed it.

        A hook is the operator's own function, which may change or reject a request before it is sent. If a
        hook rejects the request or fails, return the outcome for the line instead.
        """
        slice_ = self._request
        place = (slice_.tenant, slice_.batch_id, request.custom_id, slice_.model, slice_.endpoint.value)
        call = await self._worker.hooks(HookCall(*place, request.body))
        return call if isinstance(call, Outcome) else replace(request, body=call.body)

    async def _send(self, sent: InFlightRequest, request: OutboundRequest) -> Outcome:
        line, dispatch, upstream = sent.line, sent.dispatch, sent.dispatch.upstream
        # If the last request got no response, the line broke the connection or the backend was down.
        line.backend_verified = await _is_backend_up(line, dispatch) if line.attempt.no_response else False
        sender: RequestSender = upstream.backend.client
        chat_label = self._chat_label
        if self._is_microbatched(upstream.model):
            limits, tenant = self._limits_of(upstream.model), self._request.tenant
            sender = self._worker.senders.sender_for(
                upstream.backend, upstream.model, self._endpoint, limits, tenant
            )
            chat_label = GROUPED_CHAT if chat_label else ""
        started_at = time.monotonic()
        if upstream.jobs is not None:
            outcome = await self.jobs.run(line, request, dispatch)
        else:
            outcome = await self._router.send(
                dispatch, sender, self._endpoint, request.body, request.request_id, self._headers
            )
        self._count_unless_running(sent, outcome, time.monotonic() - started_at, chat_label)
        return outcome

    def _pass_on(self, sent: InFlightRequest, outcome: Outcome, refused: Sequence[Upstream]) -> bool:
        """Move the request, with its permit, to another backend. Return False if that is not possible.

        It is not possible in five cases:

        - The current backend runs the line as a job.
        - The turn may send no more lines.
        - The batch has reached the cap on its cost.
        - The rates do not allow one more request now.
        - No other backend is available.

        Args:
            outcome: the outcome at the current backend, which did not accept the line.
            refused: all backends that have not accepted the line so far.
        """
        if sent.line.attempt.job is not None:
            return False  # the backend runs the line as a job, whose status cannot be polled now
        if self._stop.reason is not None or not self._turn.lease.is_valid or not self._pacer.may_send:
            return False
        if self._turn.cost is not None and self._turn.cost.is_over_cap:
            return False
        if not sent.permit.may_send_again():
            return False
        following = self._router.select(
            sent.line.prefix_hash,
            tenant=self._request.tenant,
            exclude=refused,
            is_full=self._worker.permits.backends.is_full,
            is_used_up=self._worker.permits.backends.has_used_share,
        )
        if following is None:
            return False
        self._outcomes.attribution.record_backend_failure(sent.dispatch, outcome)
        sent.dispatch.end()
        sent.dispatch = following
        sent.permit.place(following.upstream.backend.url)
        self._pacer.record_send()
        sent.permit.charge(len(sent.line.data))
        self._worker.metrics.passed_on.labels(self._request.model).inc()
        return True

    async def _probe_if_in_doubt(self, sent: InFlightRequest, outcome: Outcome) -> None:
        """Send a probe if it is unclear whether the line or the backend caused the failure.

        A probe is a small test request to the backend. If the backend answered both the line and the probe,
        the line's `is_backend_alive` becomes True. In all other cases, it becomes False.
        """
        line, dispatch, attribution = sent.line, sent.dispatch, self._outcomes.attribution
        line.is_backend_alive = False
        if self._stop.reason is not None:
            return
        if not attribution.needs_probe(line, sent.request.request_id, outcome, dispatch):
            return
        result = await dispatch.upstream.probe(self._endpoint)
        # If the probe has no result, the response proves nothing: it may come from a broken proxy.
        line.is_backend_alive = result is not ProbeResult.NONE and outcome.status > 0
        if result is ProbeResult.NORMAL:
            report_probe_success(dispatch)

    # Counting

    def _observe(self, sent: InFlightRequest, outcome: Outcome) -> None:
        """Report an outcome to the limits, the prefix groups and the memory budget.

        The memory budget gets the size of the response's body.
        """
        sent.permit.record_outcome(outcome)
        if outcome.verdict is SUCCESS:
            self._router.prefixes.succeed(sent.line.prefix_group)
        elif outcome.status and sent.line.attempt.job is None:
            sent.permit.correct_charge(0)  # the backend refused, so it used no tokens
        self._budget.observe_response(len(outcome.body))

    def _count_unless_running(
        self, sent: InFlightRequest, outcome: Outcome, seconds: float, chat_label: str
    ) -> None:
        """Update the metrics for a request that has ended.

        If the request is a job that still runs, and only polling it has failed, do nothing.
        """
        if sent.line.attempt.job is None or outcome.verdict.budget not in DEFERRED:
            url = sent.dispatch.upstream.backend.url
            self._outcomes.metrics.request_ended(url, outcome, seconds, chat_label)

    def _is_microbatched(self, model: str) -> bool:
        """Return True if the model's limits allow several lines in one request (a microbatch)."""
        found = self._microbatched.get(model)
        if found is None:
            limits = self._limits_of(model)
            found = self._microbatched[model] = self._worker.senders.is_enabled(model, self._endpoint, limits)
        return found

    def _limits_of(self, model: str) -> LimitConfig:
        """Return the registry's limits for the model."""
        routers = (self._router, *self._router.fallbacks)
        return next((router.limits for router in routers if router.model == model), self._router.limits)


async def _is_backend_up(line: SliceLine, dispatch: Dispatch) -> bool | None:
    """Return True if the backend responds now, False if it does not, and None if this is unknown.

    Call this before a line is sent again after a request without a response. The result shows whether the
    line or the backend was at fault (decision 0005).

    - If the backend has answered another line since this line was last sent, return True without a request.
    - If not, request the backend's list of models. Return True if the backend responds, False if it does not.
    - There is one exception. Some backends have answered lines before, but have never responded to a request
      for their list of models. If such a backend does not respond, return None.
    """
    circuit, backend = dispatch.upstream.circuit, dispatch.upstream.backend
    if line.tried_at is not None and circuit.succeeded_since(line.tried_at):
        return True
    if await backend.is_reachable():
        return True
    return False if backend.has_responded or not circuit.succeeded_since(0.0) else None
