"""One turn of a slice: the objects that its parts share, its stop signal, and its rate limit."""

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum, auto

from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from batchwright.activities.execution.lease import SliceLease
from batchwright.activities.execution.line_queue import LineQueue, SliceLine
from batchwright.activities.execution.line_settlement import InFlightRequest, LineSettler
from batchwright.activities.execution.quarantine import CrashQuarantine
from batchwright.activities.execution.result_writer import ResultWriter
from batchwright.activities.execution.worker_context import WorkerContext
from batchwright.activities.services.batch_costs import SliceCost
from batchwright.activities.services.slice_demand import HeldSlice
from batchwright.contracts.errors import Failure
from batchwright.contracts.payloads.execution import SliceRequest
from batchwright.inference.limits.fleet_rates import EffectiveRates
from batchwright.inference.router import ModelRouter
from batchwright.rules.deadline import Deadline
from batchwright.rules.dispatch.rate_limits import Pacing

# If a send was late, the next send may be early by at most this much. Timers are late by milliseconds.
_MAX_CATCH_UP_SECONDS = 0.02


class StopReason(Enum):
    COMPLETED = auto()  # every line is settled
    TURN_EXPIRED = auto()
    DEFERRED = auto()  # no line can be sent now
    DEADLINE = auto()
    OVER_CAP = auto()  # the batch has reached the cap on its cost
    CANCELLED = auto()  # or paused
    SHUTDOWN = auto()  # the worker shuts down, or an operator paused or reset the activity
    LEASE_LOST = auto()  # another attempt has the slice


@dataclass
class StopSignal:
    """Says that an attempt of a slice (turn) has to stop, and why.

    The first reason that is set stays, unless LEASE_LOST replaces it.

    Attributes:
        cancel_grace: seconds that requests in flight may still take after a cancel, or after the batch has
            reached the cap on its cost.
        shutdown_grace: seconds that requests in flight may still take after the worker begins to shut down.
        sends_until: lines may be sent until this time, in Unix seconds; minus infinity after a reason was
            set.
    """

    deadline: Deadline
    cancel_grace: float
    shutdown_grace: float
    sends_until: float = field(init=False)
    is_lease_lost: bool = False
    _reason: StopReason | None = None
    _stopped_at: float = 0.0  # monotonic time

    def __post_init__(self) -> None:
        self.sends_until = self.deadline.at

    def set(self, reason: StopReason) -> None:
        if self._reason is None or reason is StopReason.LEASE_LOST:
            self._reason, self._stopped_at = reason, time.monotonic()
            self.sends_until = -math.inf
            self.is_lease_lost = reason is StopReason.LEASE_LOST

    @property
    def reason(self) -> StopReason | None:
        """Why the attempt of the slice has to stop; None if it may continue."""
        if self._reason is None and self.deadline.passed(time.time()):
            self.set(StopReason.DEADLINE)
        return self._reason

    def grace_remaining(self) -> float:
        """Return for how many seconds requests in flight may continue; 0 or negative if they must end now."""
        remaining = self.deadline.grace_remaining(time.time())
        elapsed = time.monotonic() - self._stopped_at
        match self._reason:
            case StopReason.LEASE_LOST:
                return 0.0
            case StopReason.CANCELLED | StopReason.OVER_CAP:
                return min(remaining, self.cancel_grace - elapsed)
            case StopReason.SHUTDOWN:
                return min(remaining, self.shutdown_grace - elapsed)
            case _:
                return remaining


class RatePacer:
    """Limits the requests of one attempt of a slice (turn): the interval between them, and their number.

    Temporal limits how many turns start per second. Each turn sends a limited number of requests, so the rate
    of all requests is limited, too. The rates are looked up before each request, so a changed rate applies to
    running turns.
    """

    def __init__(
        self, rates: EffectiveRates, model: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rates, self._model, self._clock = rates, model, clock
        self._sends = 0
        self._last_due = float("-inf")  # when the last send was due; without a rate, when it was made
        self._checked: Pacing | None = None  # the rate that allowed the next send

    @property
    def is_exhausted(self) -> bool:
        """True if this attempt of the slice may send no more requests.

        The next attempt sends the remaining lines.
        """
        return not self.remaining()

    def remaining(self) -> float:
        """Return how many more requests this attempt of the slice may send.

        If there is no rate limit, return infinity.
        """
        pacing = self._pacing
        return math.inf if pacing is None else max(0, pacing.lines - self._sends)

    @property
    def may_send(self) -> bool:
        self._checked = pacing = self._pacing
        return pacing is None or (self._sends < pacing.lines and not self._delay(pacing))

    def delay(self) -> float:
        """Return the seconds until the next request may be sent; 0 if it may be sent now."""
        pacing = self._pacing
        return 0.0 if pacing is None else self._delay(pacing)

    @property
    def _pacing(self) -> Pacing | None:
        rates = self._rates.allocation
        return rates.own.get(self._model, rates.shared)

    def _delay(self, pacing: Pacing) -> float:
        return max(0.0, self._last_due + pacing.interval_seconds - self._clock())

    def record_send(self) -> None:
        """Count a request that `may_send` has allowed. Call this also when a line is sent again."""
        pacing, now = self._checked, self._clock()
        if pacing is None or not self._sends:
            self._last_due = now
        else:
            due = self._last_due + pacing.interval_seconds
            self._last_due = min(now, max(due, now - _MAX_CATCH_UP_SECONDS))
        self._sends += 1


@dataclass(eq=False, slots=True)
class TurnState:
    """Changing state of a running attempt of a slice (turn). Its dispatcher and executor share the state."""

    in_flight: set[InFlightRequest] = field(default_factory=set[InFlightRequest])
    waiting_line: SliceLine | None = None  # the line that is queued for a permit
    error: Exception | None = None  # an error that ends the turn
    wake: asyncio.Event = field(default_factory=asyncio.Event)  # set when the dispatcher has to check again

    def fail(self, error: Exception) -> None:
        self.error = error
        self.wake.set()


@dataclass(frozen=True, eq=False)
class SliceTurn:
    """Objects of one attempt of a slice (turn) that its dispatcher, executor and job runner share."""

    worker: WorkerContext
    request: SliceRequest
    router: ModelRouter
    queue: LineQueue
    writer: ResultWriter
    outcomes: LineSettler
    lease: SliceLease
    stop: StopSignal
    quarantine: CrashQuarantine
    pacer: RatePacer
    held: HeldSlice
    cost: SliceCost
    state: TurnState = field(default_factory=TurnState)


def next_turn_error(kind: Failure, message: str, delay_seconds: float) -> ApplicationError:
    """Return the error with which this attempt ends, so that another attempt follows.

    It is not counted as a failure. Temporal starts the next attempt after `delay_seconds`.
    """
    return ApplicationError(
        message,
        type=kind,
        category=ApplicationErrorCategory.BENIGN,
        next_retry_delay=timedelta(seconds=delay_seconds),
    )
