"""A slice that can send nothing gives its slot back: for how long, and what is said about it."""

import random
import time
from collections.abc import Callable

from batchwright.inference.circuit import Circuit
from batchwright.telemetry.metrics import Metrics

_REASONS = ("no_backend", "retry", "authentication", "permission", "capacity", "dependency")
# Of a circuit that a refusal has opened.
_REFUSALS = {
    "authentication": "the backend does not know our key (401): check BATCHWRIGHT_BACKEND_API_KEY, or the "
    "registry's",
    "permission": "the backend knows our key and refuses it this model (403): let it, or use another key",
}
_FORGOTTEN_SECONDS = 60.0
_SHORTEST, _LONGEST = 5.0, 60.0
_DOUBLINGS = 4
# An outage is prolonged by at most about this part of it: a slice that is put off hears of nothing.
_PART_OF_OUTAGE = 0.25


def deferral_seconds(circuit: Circuit | None, lines_wait: float, attempt: int) -> float:
    """`circuit` stands for the model's backends; None: it has none.

    From 5 s to 60 s while the model takes nothing; till its first line's time where only lines wait."""
    if circuit is None:
        return min(_SHORTEST * 2.0 ** min(max(attempt - 1, 0), _DOUBLINGS), _LONGEST)
    if not circuit.is_open:
        return min(max(lines_wait, 1.0), _LONGEST)
    seconds = min(max(circuit.open_seconds * _PART_OF_OUTAGE, _SHORTEST), _LONGEST)
    # Slices come back one by one, so that one of them is there when a trial is due.
    return seconds * random.uniform(0.75, 1.0)


def reason_of(circuit: Circuit | None) -> str:
    """Ends a sentence, and stands beside the name of the model: it does not repeat it."""
    if circuit is None:
        return "no backend serves this model"
    if not circuit.is_open:
        return "every line that is left waits for its next attempt"
    if circuit.reason in _REFUSALS:
        return _REFUSALS[circuit.reason]
    return f"the backend takes nothing now: {_within_a_sentence(circuit.reason)}"


def _within_a_sentence(message: str) -> str:
    """Of "The backend answered 503.": it answered 503."""
    said = message.removesuffix(".")
    about_it = said.removeprefix("The backend ")
    return f"it {about_it}" if about_it != said else said[:1].lower() + said[1:]


def waiting_label(circuit: Circuit | None) -> str:
    """A bounded set of causes, for the metric."""
    if circuit is None:
        return "no_backend"
    if not circuit.is_open:
        return "retry"
    return circuit.reason if circuit.reason in _REFUSALS else "capacity"


class Deferrals:
    """Counts what is put off, and shows what is put off at the moment.

    A slice may go on at another worker, which this one hears nothing of: it is forgotten a minute after it
    was due.
    """

    def __init__(self, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        self._metrics, self._clock = metrics, clock
        self._waiting: dict[tuple[str, str], tuple[str, float]] = {}
        for reason in _REASONS:
            metrics.waiting.labels(reason).set_function(lambda reason=reason: self._count(reason))

    def note(self, batch_id: str, model: str, reason: str, seconds: float, lines: int = 0) -> None:
        """`lines` are those without a result, as far as they are known."""
        self._metrics.deferrals.labels(model, reason).inc()
        self._metrics.deferred_items.labels(model, reason).inc(lines)
        self._metrics.deferral_seconds.labels(model, reason).observe(seconds)
        self._waiting[batch_id, model] = (reason, self._clock() + seconds + _FORGOTTEN_SECONDS)

    def forget(self, batch_id: str, model: str) -> None:
        self._waiting.pop((batch_id, model), None)

    def _count(self, reason: str) -> int:
        now = self._clock()
        self._waiting = {key: entry for key, entry in self._waiting.items() if entry[1] > now}
        return sum(why == reason for why, _ in self._waiting.values())
