"""Report the progress of one slice attempt, and the reason why the slice waits."""

import time

from temporalio.exceptions import ApplicationError

from batchwright.activities.execution.slice_state.segment_buffer import LAST_FLUSH_SECONDS, SegmentBuffer
from batchwright.activities.execution.turn_context import next_turn_error
from batchwright.activities.execution.worker_context import WorkerContext
from batchwright.activities.services.worker_slices.slice_deferrals import (
    deferral_cause,
    deferral_seconds,
    waiting_reason,
)
from batchwright.contracts.errors import Failure
from batchwright.contracts.temporal_payloads.execution import SliceRequest
from batchwright.database.records import SliceProgress
from batchwright.inference.circuits.circuit_breaker import CircuitBreaker
from batchwright.rules.deadline import Deadline

_LIMIT_SECONDS = 10.0  # seconds a reason is shown; the next heartbeat reports it again
_PROBE_SECONDS = 60.0  # at least as long as a deferral with the same reason


class SliceReporter:
    """The reporter of one slice attempt: how many lines are settled, and why the slice waits.

    The reporter writes the counts to the batch's row in the database, and passes the reasons to
    `WaitingReasonPublisher`, which publishes them. `report` is called before each heartbeat and at the end of
    the attempt.
    """

    def __init__(
        self, worker: WorkerContext, request: SliceRequest, writer: SegmentBuffer, attempt: int
    ) -> None:
        self._worker, self._request, self._writer = worker, request, writer
        self._attempt = attempt
        self._place = request.tenant, request.batch_id, request.model
        self._settled: int | None = None  # number of settled lines at the last report

    def report(self) -> None:
        """Report the slice's counts, and the reason why the slice waits.

        Until the results of earlier attempts of the slice are read, the counts are too low, so nothing is
        reported.
        """
        writer, request = self._writer, self._request
        if not writer.is_restored:
            return
        progress = SliceProgress(
            tenant=request.tenant,
            batch_id=request.batch_id,
            model=request.model,
            number=request.number,
            generation=request.generation,
            attempt=self._attempt,
            completed=writer.completed,
            failed=writer.failed,
            usage=writer.usage,
            errors=writer.errors.counts(),
        )
        self._worker.progress.report(progress)
        self._report_waiting(writer.completed + writer.failed)

    def clear_waiting(self, *, another_turn_follows: bool) -> None:
        """Clear the waiting reason (a text for the tenant) and the deferral (a record for the metrics).

        Call this at the end of an attempt that sent lines. If the model's circuit breaker allows only trial
        requests (single requests that test the backend):

        - The waiting reason is not cleared.
        - The deferral is cleared only if the slice has no further attempt (`another_turn_follows` is False).
        """
        is_open = self._open_circuit() is not None
        if not is_open:
            self._worker.waiting_reasons.clear(*self._place)
        if not (another_turn_follows and is_open):
            self._worker.deferrals.clear(self._request.batch_id, self._request.model)

    def deferral(self, blocked_seconds: float, unsettled: int) -> ApplicationError:
        """Return the error that ends this attempt, so that the slice is tried again later.

        Also publish why the slice waits.

        Args:
            blocked_seconds: seconds until a line may be sent.
            unsettled: number of lines without a result, for metrics.
        """
        worker, request = self._worker, self._request
        router = worker.router(request.model)
        circuit = router.circuit if router else None
        reason = waiting_reason(circuit, request.tenant)
        remaining = Deadline.of(request.deadline).remaining(time.time())
        delay = max(0.001, min(deferral_seconds(circuit, blocked_seconds, self._attempt), remaining))
        worker.waiting_reasons.report(*self._place, reason, delay)
        cause = deferral_cause(circuit)
        worker.deferrals.record(request.batch_id, request.model, cause, delay, unsettled)
        worker.traffic.record_deferral(request.model, cause)
        detail = f" ({circuit.detail})" if circuit is not None and circuit.is_open and circuit.detail else ""
        return next_turn_error(Failure.DEFERRED, reason + detail, delay)

    def _report_waiting(self, settled: int) -> None:
        """Publish why the slice waits.

        There are three possible reasons: results cannot be stored, the model's circuit breaker allows only
        trial requests (single requests that test the backend), or a limit is reached. If none applies, and
        lines were settled since the last call, clear the waiting reason.

        Args:
            settled: number of lines settled so far.
        """
        waiting = self._worker.waiting_reasons
        if self._writer.is_overdue:
            waiting.report(*self._place, "its results cannot be stored now", LAST_FLUSH_SECONDS)
        elif (circuit := self._open_circuit()) is not None:  # a probe may take long
            waiting.report(*self._place, waiting_reason(circuit, self._request.tenant), _PROBE_SECONDS)
        elif reason := self._limit_reason():
            waiting.report(*self._place, reason, _LIMIT_SECONDS)
        elif self._settled is not None and settled > self._settled:
            waiting.clear(*self._place)
        self._settled = settled

    def _limit_reason(self) -> str:
        """Return the cap or the rate limit that stops the slice's lines, in words; empty if no limit stops
        them.
        """
        request, permits = self._request, self._worker.permits
        tenant, model = request.tenant, request.model
        limit = permits.limit_reached(model, tenant, request.caller.key_id)
        return "" if limit is None or limit.is_hold else permits.limits.reason(limit, model, tenant)

    def _open_circuit(self) -> CircuitBreaker | None:
        """Return the model's circuit breaker while it allows only trial requests; None at all other times."""
        router = self._worker.router(self._request.model)
        return router.circuit if router is not None and router.only_trials_allowed else None
