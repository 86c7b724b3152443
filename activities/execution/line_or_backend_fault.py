"""Failed requests: decide whether the line or its backend is at fault.

If the backend is at fault, the line loses no attempt, and the backend's circuit breaker may open. Decision
0073 explains these rules.
"""

from collections.abc import Callable

from batchwright.activities.execution.slice_state.line_queue import SliceLine
from batchwright.inference.circuits.circuit_reports import report_failure
from batchwright.inference.request_outcome import Outcome, quotable_error
from batchwright.inference.router import Dispatch
from batchwright.rules.dispatch.retry_policy import (
    Budget,
    Category,
)


class FaultAttribution:
    """The rules that decide for each failure of a slice's lines if the line or the backend is at fault.

    The object also reports failures to the backends' circuit breakers.
    """

    def __init__(self, tenant: str, others_wait: Callable[[], bool]) -> None:
        """Create the object for one slice.

        Args:
            tenant: tenant of the slice.
            others_wait: returns True if lines of another tenant are waiting to be sent to the same model.
        """
        self._tenant, self._others_wait = tenant, others_wait

    def needs_probe(self, line: SliceLine, outcome: Outcome, dispatch: Dispatch) -> bool:
        """Return True if it is unclear whether the line or the backend caused the outcome.

        The caller then sends a probe, a minimal request that a healthy backend answers.
        """
        if outcome.verdict.budget is not Budget.ATTEMPT or outcome.is_unanswered:
            return False
        if outcome.verdict.category is Category.POLICY:
            return False
        return dispatch.upstream.circuit.record_suspect(
            dispatch.attempt,
            line.request_id,
            since=_last_tried_at(line, dispatch),
            proved=line.attempt.count > 0,
        )

    def charged_budget(self, line: SliceLine, outcome: Outcome, dispatch: Dispatch) -> Budget:
        """Return what the line loses by the outcome, for example one of its attempts (ATTEMPT).

        Usually, the result is `outcome.verdict.budget`. But if this budget is ATTEMPT and the backend is at
        fault, the result is CAPACITY: the line loses no attempt, and only has to wait.
        """
        if outcome.verdict.budget is not Budget.ATTEMPT:
            return outcome.verdict.budget
        circuit = dispatch.upstream.circuit
        if circuit.is_open and line.is_backend_alive and dispatch.attempt.is_trial:
            return Budget.ATTEMPT
        blames_backend = circuit.attribute_to_backend(
            line.request_id,
            since=_last_tried_at(line, dispatch),
            proved=line.attempt.count > 0,
            backend_verified=line.backend_verified if outcome.is_unanswered else None,
        )
        return Budget.CAPACITY if blames_backend else Budget.ATTEMPT

    def record_error(self, dispatch: Dispatch, outcome: Outcome) -> None:
        """Store a backend's error message, so that the waiting reason of the model can quote it.

        The message is stored in the backend's circuit breaker. Only the tenant of this slice can read it.
        """
        dispatch.upstream.circuit.remember_error(self._tenant, quotable_error(outcome))

    def record_backend_failure(
        self, dispatch: Dispatch, outcome: Outcome, *, short_pauses: bool = False
    ) -> None:
        """Report a failure to the circuit breaker of the backend that is at fault. The circuit may open.

        Args:
            dispatch: the request that failed.
            outcome: the outcome of the request.
            short_pauses: True if the backend answers probes (small test requests), although the line failed.
                If the circuit is open, the next trial (a request that shows if the backend has recovered) is
                then allowed sooner.
        """
        others_wait = self._others_wait()
        report_failure(dispatch, outcome, self._tenant, others_wait=others_wait, short_pauses=short_pauses)


def _last_tried_at(line: SliceLine, dispatch: Dispatch) -> float:
    return dispatch.attempt.sent_at if line.tried_at is None else line.tried_at
