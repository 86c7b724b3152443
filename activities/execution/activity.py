"""The activity `run_slice`, which sends the lines of one slice. Each of its attempts is called a turn."""

import asyncio
import time
from collections import Counter

from temporalio import activity

from batchwright.activities.execution.attempt import SliceAttempt
from batchwright.activities.execution.slice_state.line_quarantine import attempt_history
from batchwright.activities.execution.turn_context import next_turn_error
from batchwright.activities.execution.worker_context import WorkerContext
from batchwright.activities.heartbeat import failure_count_details, previous_failures
from batchwright.activities.services.worker_slices.held_slices import HeldSlice
from batchwright.contracts.errors import Failure
from batchwright.contracts.temporal_names import DISPATCH_QUEUE
from batchwright.contracts.temporal_payloads.execution import ExecutionActivities, SliceRequest, SliceResult
from batchwright.inference.limits.fleet_rate_limits import EffectiveRates
from batchwright.rules.deadline import Deadline
from batchwright.rules.limits.rate_allocation import ALL_MODELS

_MAX_MOVE_SECONDS = 30.0
_DEPENDENCY_RETRY_SECONDS = 5.0
_DEPENDENCY_CAUSE = "dependency"
_DEPENDENCY_REASON = "object storage or the database does not answer the worker"


_NO_SHARE_RETRY_SECONDS = 2.0
_NO_SHARE_CAUSE = "capacity"
_NO_SHARE_REASON = (
    "the limit of requests in flight for the backend is divided between the workers, and this one has no part"
)
_INTERACTIVE_REASON = (
    "interactive calls use the backend, and this worker has no part of the requests in flight that they leave"
)


class Execution(ExecutionActivities):
    def __init__(self, worker: WorkerContext) -> None:
        self._worker = worker
        self.running: Counter[tuple[str, str]] = Counter()  # number of running slices, by batch and model

    @activity.defn
    async def run_slice(self, request: SliceRequest) -> SliceResult:
        """Send the lines of a slice that have no stored result yet, and return the slice's counts.

        A slice is a part of a batch's lines. One attempt of this activity is a turn, limited in time. A line
        with a stored result is never sent again, even if processes are killed.

        In the result, `finished` is True if every line has a stored result. It is False if the slice was
        cancelled, its deadline passed, or the batch reached the cap on its cost.

        If a rate limit of the model has changed, the slice may have to move to another task queue of
        Temporal. In this case, nothing is sent, and the result contains only the queue's name, in
        `target_queue`.

        Raises:
            TurnOver, Deferred: not errors; some lines have no result yet. Temporal starts the next turn
                later, and this worker can run another slice in the meantime.
            OwnershipLost: another attempt runs the slice now.
            StorageUnavailable: storage does not respond; retried.
            PlanDamaged, ResultsDamaged: stored objects are damaged; never retried.
        """
        info = activity.info()
        history = attempt_history(info.attempt, info.heartbeat_details)
        if history.crashes:  # so that this attempt hides no crash if it ends before it reads the lines
            failures = failure_count_details(previous_failures(info.heartbeat_details))
            activity.heartbeat(SliceResult(**history._asdict()), *failures)
        polled = ALL_MODELS if info.task_queue == DISPATCH_QUEUE else request.model
        demand, tenant, batch_id = self._worker.demand, request.tenant, request.batch_id
        with demand.holding(polled, request.model, tenant, batch_id) as held:
            require_dependencies(self._worker, request)
            require_share(self._worker, request)
            refuse_surplus(held, request)
            if queue := await target_queue(self._worker.rates, request):
                return SliceResult(target_queue=queue)
            key = request.batch_id, request.model
            self.running[key] += 1
            try:
                return await _run_attempt(SliceAttempt(self._worker, request, held))
            finally:
                self.running[key] -= 1
                if not self.running[key]:
                    del self.running[key]


def require_dependencies(worker: WorkerContext, request: SliceRequest) -> None:
    """Check that this worker can reach the services that it needs to run a slice, such as storage.

    If it cannot reach one of them, publish why the slice waits.

    Raises:
        Deferred: not an error; one of the services is unreachable. The slice returns to its task queue,
            because another worker may reach the service. The database and the metrics get the reason.
    """
    missing = worker.missing_dependencies()
    if not missing:
        return
    tenant, batch_id, model = request.tenant, request.batch_id, request.model
    worker.waiting_reasons.report(tenant, batch_id, model, _DEPENDENCY_REASON, _DEPENDENCY_RETRY_SECONDS)
    worker.deferrals.record(batch_id, model, _DEPENDENCY_CAUSE, _DEPENDENCY_RETRY_SECONDS)
    raise next_turn_error(Failure.DEFERRED, f"{_DEPENDENCY_REASON}: {missing}", _DEPENDENCY_RETRY_SECONDS)


def require_share(worker: WorkerContext, request: SliceRequest) -> None:
    """Check that this worker may send requests to at least one backend of the model.

    The limit on a backend's requests in flight applies to the whole fleet and is divided between the workers.
    The share of one worker can be 0 in three cases:

    - The worker has just started.
    - The limit is smaller than the number of workers.
    - Interactive requests (not lines of batches) use most of the limit.

    Raises:
        Deferred: this worker's share is 0 for every backend of the model, and the slice's deadline has not
            passed. The slice returns to its task queue, so that another worker can run it. The database and
            the metrics get the reason.
    """
    if worker.has_share(request.model) or Deadline.of(request.deadline).passed(time.time()):
        return
    tenant, batch_id, model = request.tenant, request.batch_id, request.model
    urls = worker.urls_of(model)
    reason = _INTERACTIVE_REASON if any(map(worker.is_used_up_by_interactive, urls)) else _NO_SHARE_REASON
    worker.waiting_reasons.report(tenant, batch_id, model, reason, _NO_SHARE_RETRY_SECONDS)
    worker.deferrals.record(batch_id, model, _NO_SHARE_CAUSE, _NO_SHARE_RETRY_SECONDS)
    message = f"{reason}: raise `in_flight` of {', '.join(urls)}, or run fewer workers"
    raise next_turn_error(Failure.DEFERRED, message, _NO_SHARE_RETRY_SECONDS)


def refuse_surplus(held: HeldSlice, request: SliceRequest) -> None:
    """Refuse to run a surplus slice, so that another worker can run the slice.

    A worker sometimes searches for a slice of a certain tenant or batch. But Temporal always returns the next
    slice of the task queue. If this slice belongs to another tenant or batch, and the worker has enough other
    lines to send, the slice is surplus (`held.is_surplus`).

    In two cases, a surplus slice is not refused:

    - The deadline of the slice has passed.
    - Workers crashed during earlier attempts to run the slice. If it runs now, the cause is found sooner.

    Raises:
        TurnOver: not an error; the slice returns to its task queue, behind the slices of the other tenants.
    """
    info = activity.info()
    if not held.is_surplus or Deadline.of(request.deadline).passed(time.time()):
        return
    if not attempt_history(info.attempt, info.heartbeat_details).crashes:
        message = f"slice {request.number} returns to its queue: this worker seeks slices of others"
        raise next_turn_error(Failure.TURN_OVER, message, 0.001)


async def target_queue(rates: EffectiveRates, request: SliceRequest) -> str:
    """Return the name of the task queue to which the slice must move; empty if it stays in its queue.

    Temporal limits how fast slices of a task queue start. Models that share a rate limit therefore share a
    task queue. If a rate limit is changed, a model may get another task queue. The slices of the model then
    move, even if they are already running.

    The first move of a slice happens at once. Before each further move, the slice has to wait, longer each
    time. Without these waits, workers with different settings could move a slice back and forth, for example
    during a rollout.

    Raises:
        TurnOver: not an error; the slice has to wait before it moves. The next attempt checks the rate limits
            again.
    """
    info = activity.info()
    queue = await rates.other_queue(request.model, info.task_queue)
    if queue and request.queue_changes and info.attempt == 1:
        message = f"slice {request.number} moves to {queue!r} unless the rates change again"
        wait = min(2.0 ** min(request.queue_changes, 10), _MAX_MOVE_SECONDS)
        raise next_turn_error(Failure.TURN_OVER, message, wait)
    return queue


async def _run_attempt(attempt: SliceAttempt) -> SliceResult:
    """Run the attempt in its own task and return its result.

    If the activity is cancelled, the attempt gets a signal to stop. It is not interrupted, so that it can
    still store its results.
    """
    running = asyncio.create_task(attempt.run())
    while not running.done():
        try:
            await asyncio.wait([running])
        except asyncio.CancelledError:
            attempt.cancelled()
    return running.result()
