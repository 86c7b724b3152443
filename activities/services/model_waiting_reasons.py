"""Find out why a model of a batch waits and how long its slices are deferred, and publish both."""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Protocol

from temporalio.client import Client
from temporalio.service import RPCError

from batchwright.background import log_failure
from batchwright.contracts.temporal_payloads.batch import WaitingReason
from batchwright.database.errors import DatabaseUnavailable
from batchwright.database.tables.batches.waiting_reasons import WaitingReasonsTable, WaitingRow, WaitingSource
from batchwright.inference.circuits.circuit_breaker import CircuitBreaker
from batchwright.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)
_SECONDS_PER_SIGNAL = 60.0
# Maximum number of signals without a pause. The reason may change several times when a backend fails,
# because lines in flight may still settle.
_SIGNAL_BURST = 4
_DATABASE_SECONDS = 5.0  # minimum time between two writes of the same reason
_EXPIRY_MARGIN_SECONDS = 30.0
_MAX_REMEMBERED = 10_000

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
    """Return why a model waits. The text continues a sentence that begins with the model's name.

    The text quotes the last error that the backend returned for this tenant. It never quotes an error of
    another tenant.

    Args:
        circuit: circuit breaker that represents the model's backends; None if no backend serves the model.
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
        circuit: circuit breaker that represents the model's backends; None if no backend serves the model.
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
        circuit: circuit breaker that represents the model's backends; None if no backend serves the model.
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
    """Metrics about deferred slices: how often slices are deferred, and how many are deferred now.

    A deferred slice returns to its queue, and is tried again later. If the slice continues on another worker,
    this worker does not learn of that. So a slice counts as deferred until one minute after the end of its
    deferral. Slices of the same batch and model count once.
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
        self._deferred[batch_id, model] = (cause, self._clock() + seconds + _DEFERRAL_MARGIN_SECONDS)

    def clear(self, batch_id: str, model: str) -> None:
        self._deferred.pop((batch_id, model), None)

    def _count(self, cause: str) -> int:
        now = self._clock()
        self._deferred = {key: entry for key, entry in self._deferred.items() if entry[1] > now}
        return sum(one == cause for one, _ in self._deferred.values())


class ReasonSignal(Protocol):
    """Sends a waiting reason to the batch's workflow. If Temporal does not accept it, nothing is raised."""

    async def __call__(self, batch_id: str, reason: WaitingReason) -> None: ...


@dataclass
class _Published:
    """The waiting reason that was last published for one model of a batch.

    Attributes:
        reason: the reason that was last sent to the workflow; empty if no reason was sent, or if the reason
            was withdrawn.
        signals_left: number of signals that could be sent without a pause at the time `signalled_at`.
    """

    reason: str = ""
    signalled_at: float = float("-inf")
    signals_left: float = _SIGNAL_BURST  # at the time `signalled_at`
    written_at: float = float("-inf")  # time of the last write to the database
    cleared_at: float = float("-inf")  # time at which the row in the database was last deleted
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)  # keeps reasons in their order


def _now() -> datetime:
    return datetime.now(UTC)


class WaitingReasons:
    """Publishes why models of batches wait: to the database for the API, and to the batch's workflow.

    The workflow gets a reason only if the reason has changed. It gets at most four reasons in a row, then one
    per minute.
    """

    def __init__(
        self,
        signal: ReasonSignal,
        table: WaitingReasonsTable,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = _now,
    ) -> None:
        self._signal, self._table, self._clock, self._now = signal, table, clock, now
        self._published: dict[tuple[str, str], _Published] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def report(self, tenant: str, batch_id: str, model: str, reason: str, seconds: float) -> None:
        """Publish in the background that the model waits because of `reason`.

        Args:
            seconds: seconds until the slice tries again. Soon after that, the reason expires, unless it is
                reported again.
        """
        published = self._of(batch_id, model)
        if published.reason == reason and self._clock() - published.written_at < _DATABASE_SECONDS:
            return
        published.written_at = self._clock()
        may_signal = published.reason != reason and self._may_signal(published)
        now = self._now()
        waiting = WaitingRow(
            tenant=tenant,
            batch_id=batch_id,
            model=model,
            source=WaitingSource.WORKER,
            reason=reason,
            since=now,
            until=now + timedelta(seconds=seconds + _EXPIRY_MARGIN_SECONDS),
        )
        if may_signal:
            published.reason = reason
            self._count_signal(published)
        self._start(published, self._write(waiting, published, may_signal=may_signal))

    def clear(self, tenant: str, batch_id: str, model: str) -> None:
        """Withdraw a model's waiting reason in the background, because the slice now sends lines.

        A reason that another worker has reported is withdrawn, too.
        """
        published = self._of(batch_id, model)
        was_signalled, published.reason, published.written_at = bool(published.reason), "", float("-inf")
        if was_signalled or self._clock() - published.cleared_at >= _DATABASE_SECONDS:
            published.cleared_at = self._clock()
            self._start(published, self._withdraw(tenant, batch_id, model, was_signalled=was_signalled))

    async def drain(self) -> None:
        """Wait until all reasons that were reported or cleared so far are published."""
        await asyncio.gather(*self._tasks)

    def _of(self, batch_id: str, model: str) -> _Published:
        if len(self._published) >= _MAX_REMEMBERED:
            self._published.clear()
        return self._published.setdefault((batch_id, model), _Published())

    def _signals_left(self, published: _Published) -> float:
        regained = (self._clock() - published.signalled_at) / _SECONDS_PER_SIGNAL
        return min(_SIGNAL_BURST, published.signals_left + regained)

    def _may_signal(self, published: _Published) -> bool:
        return self._signals_left(published) >= 1

    def _count_signal(self, published: _Published) -> None:
        published.signals_left, published.signalled_at = self._signals_left(published) - 1, self._clock()

    async def _write(self, waiting: WaitingRow, published: _Published, *, may_signal: bool) -> None:
        try:
            is_new = await self._table.report(waiting)
        except DatabaseUnavailable:
            is_new = False  # the next report writes it
        if is_new and not may_signal and self._may_signal(published):
            self._count_signal(published)  # another worker had withdrawn the reason
            may_signal = True
        if may_signal:
            fields = {"batch_id": waiting.batch_id, "model": waiting.model, "reason": waiting.reason}
            logger.info("batch blocked", extra=fields)
            reason = WaitingReason(model=waiting.model, reason=waiting.reason, since=waiting.since)
            await self._signal(waiting.batch_id, reason)

    async def _withdraw(self, tenant: str, batch_id: str, model: str, *, was_signalled: bool) -> None:
        withdrawn = was_signalled
        with suppress(DatabaseUnavailable):  # the row expires
            withdrawn = await self._table.clear(tenant, batch_id, model, WaitingSource.WORKER) or withdrawn
        if withdrawn:
            logger.info("batch unblocked", extra={"batch_id": batch_id, "model": model})
            await self._signal(batch_id, WaitingReason(model=model))

    def _start(self, published: _Published, publishing: Coroutine[None, None, None]) -> None:
        async def in_order() -> None:
            async with published.lock:
                await publishing

        task = asyncio.create_task(in_order())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(log_failure)


def temporal_reason_signal(client: Client) -> ReasonSignal:
    """Return a function that sends the signal `waiting` to the batch's workflow."""

    async def send(batch_id: str, reason: WaitingReason) -> None:
        try:
            await client.get_workflow_handle(batch_id).signal("waiting", reason)
        except RPCError as error:
            fields = {"batch_id": batch_id, "error": error.message}
            logger.info("waiting reason not delivered", extra=fields)

    return send
