"""Report the results of requests to the circuit breakers of their backends, and log when circuits change."""

import logging
from collections.abc import Callable

from batchwright.inference.request_outcome import Outcome, quotable_error
from batchwright.inference.router import Dispatch
from batchwright.rules.dispatch.retry_policy import BUSY, Budget

logger = logging.getLogger(__name__)


def report_success(dispatch: Dispatch) -> None:
    """Report a normal response to the circuit breaker of the request's backend. The circuit may close."""
    _log_if_closed(dispatch, lambda: dispatch.upstream.circuit.record_success(dispatch.attempt))


def report_probe_success(dispatch: Dispatch) -> None:
    """Report a normal response to a probe (a small test request) to the backend's circuit breaker.

    The circuit may close. `dispatch` is the failed request that made the probe necessary.
    """
    _log_if_closed(dispatch, dispatch.upstream.circuit.record_probe_success)


def report_failure(
    dispatch: Dispatch,
    outcome: Outcome,
    tenant: str,
    *,
    others_wait: bool = False,
    short_pauses: bool = False,
) -> None:
    """Report a failure that is the backend's fault to the backend's circuit breaker. The circuit may open.

    Args:
        dispatch: the request that failed.
        outcome: the outcome of the request.
        tenant: the tenant of the request. Only this tenant may see the backend's error message.
        others_wait: True if a request of another tenant is waiting.
        short_pauses: True if the backend answers probes (small test requests) but not normal requests. The
            pauses between trials (requests that show if the backend has recovered) are then short.
    """
    circuit, blocked = dispatch.upstream.circuit, outcome.verdict.budget is Budget.CREDENTIALS
    reason = outcome.verdict.category.value if blocked else outcome.message
    was_open = circuit.is_open
    circuit.detail = f"{dispatch.upstream.backend.url}: {outcome.operator_message}"
    circuit.remember_error(tenant, quotable_error(outcome))
    pause = outcome.retry_after or 0.0
    if outcome.verdict is BUSY:
        circuit.record_busy(dispatch.attempt, reason, pause=pause)
    else:
        circuit.record_failure(
            dispatch.attempt,
            reason,
            at_once=blocked,
            pause=pause,
            others_wait=others_wait,
            short_pauses=short_pauses,
        )
    if circuit.is_open and not was_open:
        fields = {"backend": dispatch.upstream.backend.url, "reason": reason, "cause": outcome.cause}
        logger.warning("circuit breaker opened", extra=fields)


def _log_if_closed(dispatch: Dispatch, report: Callable[[], None]) -> None:
    circuit = dispatch.upstream.circuit
    was_open, since = circuit.is_open, circuit.opened_at
    report()
    if was_open and not circuit.is_open:
        fields = {"backend": dispatch.upstream.backend.url, "seconds": circuit.clock() - since}
        logger.info("circuit breaker closed", extra=fields)
