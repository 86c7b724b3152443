"""Decide why and for how long a slice is deferred, and update metrics about deferred slices.

A deferred slice returns to its task queue and is tried again later.
"""

import random
import time
from collections.abc import Callable

from batchwright.inference.circuits.circuit_breaker import CircuitBreaker
from batchwright.telemetry.metrics import Metrics

_MIN_DEFERRAL, _MAX_DEFERRAL = 5.0, 60.0
_MAX_DOUBLINGS = 4
# A deferral lasts this fraction of the outage so far. A deferred slice does not notice the outage's end, so
# the fraction limits by how much deferrals prolong it.
_OUTAGE_FRACTION = 0.25
_DEFERRAL_MARGIN_SECONDS = 60.0
_CAUSES = ("no_backend", "retry", "authentication", "permission", "capacity", "dependency")
# Waiting reasons, by the reason of the open circuit.
_CREDENTIAL_REASONS = {
    "authentication": "the backend rejects Batchwright's API key (401): check BATCHWRIGHT_BACKEND_API_KEY, "
    "or the key in the registry",
    "permission": "the backend forbids Batchwright's API key to use this model (403): allow it there, or set "
    "another key",
}


def waiting_reason(circuit: CircuitBreaker | None, tenant: str = "") -> str:
    """Return why a model's lines wait. The text is a clause, such as "no backend serves this model".

    The text quotes the last error that the backend returned for this tenant. It never quotes an error of
    another tenant.

    Args:
        circuit: `ModelRouter.circuit`, the circuit breaker of the model's backend with the shortest wait;
            None if no backend serves the model.
        tenant: tenant that will read the reason.
    """
    if circuit is None:
        return "no backend serves this model"
    if circuit.is_open and circuit.reason in _CREDENTIAL_REASONS:
        return _CREDENTIAL_REASONS[circuit.reason]
    quoted = circuit.last_error(tenant)
    quote = f'; the backend\'s last error: "{quoted}"' if quoted else ""
    if not circuit.is_open:
        return f"all remaining lines wait for their next attempt{quote}"
    return f"the backend accepts no requests now: {_as_clause(circuit.reason)}{quote}"


def _as_clause(message: str) -> str:
    """Turn a sentence about the backend into a clause with "it" as its subject.

    For example, "The backend answered 503." becomes "it answered 503".
    """
    text = message.removesuffix(".")
    about_backend = text.removeprefix("The backend ")
    return f"it {about_backend}" if about_backend != text else text[:1].lower() + text[1:]


def deferral_cause(circuit: CircuitBreaker | None) -> str:
    """Return why a slice is deferred (tried again later), as a metric label.

    There are only a few different labels.

    Args:
        circuit: `ModelRouter.circuit`, the circuit breaker of the model's backend with the shortest wait;
            None if no backend serves the model.
    """
    if circuit is None:
        return "no_backend"
    if not circuit.is_open:
        return "retry"
    return circuit.reason if circuit.reason in _CREDENTIAL_REASONS else "capacity"


def deferral_seconds(circuit: CircuitBreaker | None, lines_wait: float, attempt: int) -> float:
    """Return the seconds until a slice that cannot send is tried again. Until then, it occupies no worker.

    The result is at most 60 s. There are three cases:

    - If no backend serves the model, it is 5 s at first and doubles with each attempt.
    - If the circuit is open, it is about 5 s at first and grows with the duration of the outage.
    - If the lines only wait for a retry, it is the time until the first retry, but at least 1 s.

    Args:
        circuit: `ModelRouter.circuit`, the circuit breaker of the model's backend with the shortest wait;
            None if no backend serves the model.
        lines_wait: seconds until the first line is due.
        attempt: number of the slice's attempt.
    """
    if circuit is None:
        return min(_MIN_DEFERRAL * 2.0 ** min(max(attempt - 1, 0), _MAX_DOUBLINGS), _MAX_DEFERRAL)
    if not circuit.is_open:
        return min(max(lines_wait, 1.0), _MAX_DEFERRAL)
    seconds = min(max(circuit.open_seconds * _OUTAGE_FRACTION, _MIN_DEFERRAL), _MAX_DEFERRAL)
    # The time is random, so that slices return one by one and a slice is running when a probe is due.
    return seconds * random.uniform(0.75, 1.0)


class DeferralMetrics:
    """The metrics about deferred slices: how often slices are deferred, and how many are deferred now.

    A deferred slice returns to its task queue, and a worker tries it again later. This worker does not know
    when another worker tries the slice. Therefore, unless `clear` is called, the slice counts as deferred
    until one minute after its waiting time ends. Slices of the same batch and model count once.
    """

    def __init__(self, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        self._metrics, self._clock = metrics, clock
        self._deferred: dict[tuple[str, str], tuple[str, float]] = {}
        for cause in _CAUSES:
            metrics.waiting.labels(cause).set_function(lambda cause=cause: self._count(cause))

    def record(self, batch_id: str, model: str, cause: str, seconds: float, lines: int = 0) -> None:
        """Count that a slice is deferred (tried again later) for `seconds`.

        Args:
            cause: result of `deferral_cause`, or another metric label such as `dependency`.
            lines: number of lines without a result; 0 if the lines were not read yet.
        """
        self._metrics.deferrals.labels(model, cause).inc()
        self._metrics.deferred_items.labels(model, cause).inc(lines)
        self._metrics.deferral_seconds.labels(model, cause).observe(seconds)
        self._forget_ended()
        self._deferred[batch_id, model] = (cause, self._clock() + seconds + _DEFERRAL_MARGIN_SECONDS)

    def clear(self, batch_id: str, model: str) -> None:
        self._deferred.pop((batch_id, model), None)

    def _count(self, cause: str) -> int:
        self._forget_ended()
        return sum(one == cause for one, _ in self._deferred.values())

    def _forget_ended(self) -> None:
        now = self._clock()
        self._deferred = {key: entry for key, entry in self._deferred.items() if entry[1] > now}
