"""Requests that need an asyncio task of their own, and the pool of reusable tasks that runs them.

Most requests need no task, because a function that awaits nothing handles their response. A request needs a
task if it has to wait for something else, such as a hook, a job or a microbatch, if it is traced, or if it
has failed.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextvars import copy_context
from functools import cache, partial
from typing import Generic, NoReturn, TypeVar

from msgspec.structs import replace

from batchwright.activities.execution.backend_jobs import JobRunner
from batchwright.activities.execution.line_settlement import InFlightRequest, OutboundRequest
from batchwright.activities.execution.slice_state.line_queue import SliceLine, SubmittedJob
from batchwright.activities.execution.turn_context import TurnContext
from batchwright.contracts.model_registry.registry_config import LimitConfig
from batchwright.inference.backend_client import RequestSender
from batchwright.inference.circuits.circuit_reports import report_probe_success
from batchwright.inference.hooks import HookCall
from batchwright.inference.microbatch_sender import NotSent
from batchwright.inference.probes import ProbeResult
from batchwright.inference.request_outcome import Outcome
from batchwright.inference.router import Dispatch, ModelRouter
from batchwright.inference.upstream import Upstream
from batchwright.rules.dispatch.retry_policy import BACKEND_AT_FAULT
from batchwright.telemetry.backend_traffic import GROUPED_CHAT

Item = TypeVar("Item")
# After so many items, a task yields to the event loop, because items that await nothing would block it.
_ITEMS_BEFORE_YIELD = 16


class _PooledTask(Generic[Item]):
    """A reusable task of the pool, and the next item that the task will process."""

    __slots__ = ("_waiting", "item")

    def __init__(self, item: Item) -> None:
        self.item: Item | None = item
        self._waiting: asyncio.Future[Item] | None = None

    def assign(self, item: Item) -> None:
        if self._waiting is None:
            self.item = item
        else:
            self._waiting.set_result(item)
            self._waiting = None

    async def next(self) -> Item:
        self._waiting = asyncio.get_running_loop().create_future()
        return await self._waiting


class TaskPool(Generic[Item]):
    """A pool of reusable asyncio tasks that process items. Creating a new task for each item is slow.

    A new task is created only if all tasks of the pool are busy. Each task runs in a copy of the context
    (contextvars) in which the pool was created.

    Args:
        execute: processes one item. It must not raise anything except CancelledError.
        complete: called once for each item after `execute`, even if the item was cancelled.
    """

    def __init__(self, execute: Callable[[Item], Awaitable[None]], complete: Callable[[Item], None]) -> None:
        self._execute, self._complete = execute, complete
        self._context = copy_context()
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle: list[_PooledTask[Item]] = []
        self._open: set[Item] = set()

    def submit(self, item: Item) -> None:
        """Process the item in a task of the pool. The task starts at the next cycle of the event loop."""
        self._open.add(item)
        if self._idle:
            self._idle.pop().assign(item)
            return
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._work(_PooledTask(item)), context=self._context.copy())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def cancel_all(self) -> None:
        """Cancel all items and wait until their tasks have ended. Do not call `submit` afterwards.

        The pool also drops its references to `execute` and `complete`. They usually refer to the owner of the
        pool, and the owner refers to the pool. Such a cycle would stay in memory until the next garbage
        collection.
        """
        self._idle.clear()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for item in list(self._open):  # not finished yet if its task was cancelled before the first step
            self._finish(item)
        self._execute = self._complete = _closed

    async def _work(self, pooled: _PooledTask[Item]) -> None:
        executed = 0
        while True:
            item = pooled.item or await pooled.next()
            pooled.item = None
            try:
                await self._execute(item)
            except BaseException:
                self._finish(item)
                raise
            self._idle.append(pooled)  # before `_finish`, which may submit the next item to this task
            self._finish(item)
            executed += 1
            if executed % _ITEMS_BEFORE_YIELD == 0:
                await asyncio.sleep(0)

    def _finish(self, item: Item) -> None:
        self._open.discard(item)
        self._complete(item)


def _closed(_item: object) -> NoReturn:
    raise AssertionError("the task pool is closed")


class RequestTasks:
    """The asyncio tasks of one turn (attempt of a slice): they send lines, and apply the outcomes to them.

    If a request was sent without a task and has failed, a task handles the outcome. This task may then send
    the request to another backend.

    Attributes:
        jobs: runs lines as jobs of their backends.
        is_microbatched: returns True if the given model's limits allow several lines in one request (a
            microbatch).
    """

    def __init__(self, turn: TurnContext, complete: Callable[[InFlightRequest], None]) -> None:
        """Create the tasks of one turn (attempt of a slice).

        Args:
            complete: called once for each request, after its outcome was applied or it was cancelled.
        """
        self._turn, self._worker, self._request = turn, turn.worker, turn.request
        self._router, self._queue, self._outcomes = turn.router, turn.queue, turn.outcomes
        self._stop, self._pacer, self._state = turn.stop, turn.pacer, turn.state
        self._endpoint, self._has_hooks = turn.request.endpoint, bool(turn.worker.hooks)
        self._headers, self._chat_label = turn.headers, turn.chat_label
        self.jobs = JobRunner(turn)
        self.is_microbatched = cache(partial(_is_microbatched, turn))
        self._pool = TaskPool(self._execute, complete)

    def submit(self, sent: InFlightRequest) -> None:
        """Send the request in a task. If it already has an outcome, only apply the outcome."""
        self._pool.submit(sent)

    async def cancel_all(self) -> None:
        """Cancel all tasks and wait until they have ended. Do not call `submit` afterwards."""
        await self._pool.cancel_all()

    async def _execute(self, sent: InFlightRequest) -> None:
        line = sent.line
        try:
            if line.attempt.job is not None:
                outcome = await self._follow_job(sent, line.attempt.job)
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
        except NotSent:
            self._queue.requeue(line)
        except Exception as error:
            self._state.fail(error)

    async def _follow_job(self, sent: InFlightRequest, job: SubmittedJob) -> Outcome:
        sent.job_since = job.since
        outcome = await self.jobs.follow(sent.line, sent.request, sent.dispatch, job)
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
                self._outcomes.observe(sent, outcome)
            if self._stop.is_lease_lost or outcome.verdict.budget not in BACKEND_AT_FAULT:
                return outcome
            refused.append(sent.dispatch.upstream)
            if not self._pass_on(sent, outcome, refused):
                return outcome
            outcome = None

    async def _call_hooks(self, request: OutboundRequest) -> OutboundRequest | Outcome:
        """Call the operator's hooks for the request. Return the request as the hooks changed it.

        A hook is the operator's own function. It can change or reject a request before the request is sent.
        If a hook rejects the request or fails, return the outcome for the line instead of a request.
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
        if not self._may_send():  # this may have changed during the hooks and the check
            raise NotSent
        if self.is_microbatched(upstream.model):
            limits, tenant = _limits_of(self._router, upstream.model), self._request.tenant
            sender = self._worker.senders.sender_for(
                upstream.backend,
                upstream.model,
                self._endpoint,
                limits,
                tenant,
                partial(self._claim_repeat, sent),
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
        """Move the request, with its permit, to another backend. Return True if it was moved.

        The result is False in five cases:

        - The current backend runs the line as a job.
        - This attempt of the slice may send no more lines.
        - The batch has reached the cap on its cost.
        - The rate limits do not allow one more request now.
        - No other backend is available.

        Args:
            outcome: the outcome at the current backend, which did not accept the line.
            refused: all backends that have not accepted the line so far.
        """
        if sent.line.attempt.job is not None:
            return False  # the backend runs the line as a job, whose status cannot be polled now
        if not self._may_send_again(sent):
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
        self._count_repeat(sent)
        self._worker.metrics.passed_on.labels(self._request.model).inc()
        return True

    def _may_send(self) -> bool:
        """Return True if this attempt of the slice has no reason to stop, and its lease is valid."""
        return self._stop.reason is None and self._turn.lease.is_valid

    def _may_send_again(self, sent: InFlightRequest) -> bool:
        if self._turn.cost is not None and self._turn.cost.is_over_cap:
            return False
        return self._may_send() and self._pacer.may_send() and sent.permit.may_send_again()

    def _count_repeat(self, sent: InFlightRequest) -> None:
        self._pacer.record_send()
        sent.permit.charge(sent.line_bytes)

    def _claim_repeat(self, sent: InFlightRequest) -> bool:
        """Return True if the line may be sent again now. If so, count another request for the rate limits."""
        may_send = self._may_send_again(sent)
        if may_send:
            self._count_repeat(sent)
        return may_send

    async def _probe_if_in_doubt(self, sent: InFlightRequest, outcome: Outcome) -> None:
        """If it is unclear whether the line or the backend caused a failure, send a probe to the backend.

        A probe is a small test request. The line's `is_backend_alive` becomes True if the backend sent a
        response (such as an error) to the line, and then also to the probe. Otherwise, `is_backend_alive`
        becomes False.
        """
        line, dispatch, attribution = sent.line, sent.dispatch, self._outcomes.attribution
        line.is_backend_alive = False
        if self._stop.reason is not None:
            return
        if not attribution.needs_probe(line, outcome, dispatch):
            return
        result = await dispatch.upstream.probe(self._endpoint)
        # If the probe has no result, the response proves nothing: it may come from a broken proxy.
        line.is_backend_alive = result is not ProbeResult.NONE and outcome.status > 0
        if result is ProbeResult.NORMAL:
            report_probe_success(dispatch)

    def _count_unless_running(
        self, sent: InFlightRequest, outcome: Outcome, seconds: float, chat_label: str
    ) -> None:
        """Update the metrics for a request that has ended.

        If the request is a job that still runs, and only polling it has failed, do nothing.
        """
        if sent.line.attempt.job is None or outcome.verdict.budget not in BACKEND_AT_FAULT:
            url = sent.dispatch.upstream.backend.url
            self._outcomes.metrics.request_ended(url, outcome, seconds, chat_label)


def _is_microbatched(turn: TurnContext, model: str) -> bool:
    limits = _limits_of(turn.router, model)
    return turn.worker.senders.is_enabled(model, turn.request.endpoint, limits)


def _limits_of(router: ModelRouter, model: str) -> LimitConfig:
    """Return the limits that the registry sets for `model`, the slice's model or one of its fallbacks."""
    routers = (router, *router.fallbacks)
    return next((router.limits for router in routers if router.model == model), router.limits)


async def _is_backend_up(line: SliceLine, dispatch: Dispatch) -> bool | None:
    """Return True if the backend responds now, False if it does not, and None if this cannot be found out.

    Call this before a line is sent again after a request without a response. The result shows if the line or
    the backend was at fault (decision 0005).

    - If the backend has answered another line since this line was last sent, the result is True.
    - Otherwise, the backend's list of models is requested. If the backend responds, the result is True.
    - If the backend does not respond, the result is usually False. It is None if the backend has answered
      lines, but has never returned its list of models.
    """
    circuit, backend = dispatch.upstream.circuit, dispatch.upstream.backend
    if line.tried_at is not None and circuit.succeeded_since(line.tried_at):
        return True
    if await backend.is_reachable():
        return True
    return False if backend.has_responded or not circuit.succeeded_since(0.0) else None
