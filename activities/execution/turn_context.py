"""Objects and state of one turn, which several classes share, and the error that ends a turn early.

A turn is one attempt of the activity that sends the lines of a slice.
"""

import asyncio
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property

from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from batchwright.activities.execution.line_settlement import InFlightRequest, LineSettler
from batchwright.activities.execution.rate_pacer import RatePacer
from batchwright.activities.execution.slice_state.lease import SliceLease
from batchwright.activities.execution.slice_state.line_quarantine import CrashQuarantine
from batchwright.activities.execution.slice_state.line_queue import LineQueue, SliceLine
from batchwright.activities.execution.slice_state.segment_buffer import SegmentBuffer
from batchwright.activities.execution.slice_stop_signal import StopSignal
from batchwright.activities.execution.worker_context import WorkerContext
from batchwright.activities.services.batch_cost_cap import SliceCost
from batchwright.activities.services.worker_slices.slice_demand import HeldSlice
from batchwright.contracts.errors import Failure
from batchwright.contracts.temporal_payloads.execution import SliceRequest
from batchwright.contracts.terms import Endpoint
from batchwright.inference.backend_headers import forwarded_headers
from batchwright.inference.router import ModelRouter
from batchwright.inference.transport.base import Header
from batchwright.telemetry.backend_traffic import CHAT


@dataclass(eq=False, slots=True)
class TurnState:
    """The state of one turn (attempt of a slice). All classes that work on the turn share and change it."""

    in_flight: set[InFlightRequest] = field(default_factory=set[InFlightRequest])
    waiting_line: SliceLine | None = None  # the line that is queued for a permit
    error: Exception | None = None  # an error that ends the turn
    wake: asyncio.Event = field(default_factory=asyncio.Event)  # set when the dispatcher has to check again

    def fail(self, error: Exception) -> None:
        self.error = error
        self.wake.set()


@dataclass(frozen=True, eq=False)
class TurnContext:
    """The objects of one turn (attempt of a slice). All classes that work on the turn share them."""

    worker: WorkerContext
    request: SliceRequest
    router: ModelRouter
    queue: LineQueue
    writer: SegmentBuffer
    outcomes: LineSettler
    lease: SliceLease
    stop: StopSignal
    quarantine: CrashQuarantine
    pacer: RatePacer
    held: HeldSlice
    cost: SliceCost | None  # None if the model has no prices
    state: TurnState = field(default_factory=TurnState)

    @cached_property
    def headers(self) -> list[Header]:
        """Headers of the batch's caller that are sent to the backend with each line."""
        return forwarded_headers(self.request.endpoint, self.request.caller)

    @property
    def chat_label(self) -> str:
        """Metric label of a request with a single line of the slice: CHAT for a chat, otherwise empty."""
        return CHAT if self.request.endpoint is Endpoint.CHAT_COMPLETIONS else ""


def next_turn_error(kind: Failure, message: str, delay_seconds: float) -> ApplicationError:
    """Return the error with which this attempt ends, so that another attempt follows.

    The error is not counted as a failure. Temporal starts the next attempt after `delay_seconds`.
    """
    return ApplicationError(
        message,
        type=kind,
        category=ApplicationErrorCategory.BENIGN,
        next_retry_delay=timedelta(seconds=delay_seconds),
    )
