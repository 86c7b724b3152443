"""What a slice tells of itself: counts for its beat and its batch's row, and why it waits."""

import time

from temporalio.exceptions import ApplicationError

from activities.slices.deferral import deferral_seconds, reason_of, waiting_label
from activities.slices.ends import next_turn
from activities.slices.sink import LAST_FLUSH_SECONDS, SegmentSink
from activities.slices.tools import Tools
from batchwright.contracts.errors import Failure
from batchwright.contracts.execution import SliceRequest, SliceResult
from batchwright.database.rows import SliceProgress
from batchwright.inference.circuit import Circuit

_TRIAL_SECONDS = 60.0  # no shorter than a deferral that follows, which has the same reason


class Telling:
    """Of one attempt: at every beat, and at its end."""

    def __init__(self, tools: Tools, request: SliceRequest, sink: SegmentSink, attempt: int) -> None:
        self._tools, self._request, self._sink = tools, request, sink
        self._attempt = attempt
        self._settled: int | None = None  # at the last beat

    def counts(self) -> SliceResult:
        """For the heartbeat; they are told for the batch's row, too."""
        sink, request = self._sink, self._request
        if sink.knows_the_past:
            progress = SliceProgress(
                tenant=request.tenant,
                batch_id=request.batch_id,
                model=request.model,
                number=request.number,
                generation=request.generation,
                attempt=self._attempt,
                completed=sink.completed,
                failed=sink.failed,
                usage=sink.usage,
            )
            self._tools.progress.tell(progress)
            self._tell_waiting(sink.completed + sink.failed)
        return SliceResult(completed=sink.completed, failed=sink.failed)

    def sent(self, *, goes_on: bool) -> None:
        """A turn is over in which a line was asked."""
        tools, request = self._tools, self._request
        is_shut = self._shut() is not None
        if not is_shut:
            tools.waiting.moves(request.tenant, request.batch_id, request.model)
        if not (goes_on and is_shut):
            tools.deferrals.forget(request.batch_id, request.model)

    def deferral(self, blocked_seconds: float, unsettled: int) -> ApplicationError:
        """What puts off the slice, of which no line may be asked within `blocked_seconds`."""
        tools, request = self._tools, self._request
        route = tools.route(request.model)
        circuit = route.circuit if route else None
        reason = reason_of(circuit)
        left = request.closes_at.timestamp() - time.time()
        delay = max(0.001, min(deferral_seconds(circuit, blocked_seconds, self._attempt), left))
        tools.waiting.waits(request.tenant, request.batch_id, request.model, reason, delay)
        label = waiting_label(circuit)
        tools.deferrals.note(request.batch_id, request.model, label, delay, unsettled)
        tools.traffic.put_off(request.model, label)
        return next_turn(Failure.DEFERRED, reason, delay)

    def _tell_waiting(self, settled: int) -> None:
        """While the turn goes on: what cannot be stored, or only be tried, waits; what settles else moves."""
        waiting, request = self._tools.waiting, self._request
        if self._sink.is_overdue:
            reason = "its results cannot be stored now"
            waiting.waits(request.tenant, request.batch_id, request.model, reason, LAST_FLUSH_SECONDS)
        elif (circuit := self._shut()) is not None:  # a trial may take long
            reason = reason_of(circuit)
            waiting.waits(request.tenant, request.batch_id, request.model, reason, _TRIAL_SECONDS)
        elif self._settled is not None and settled > self._settled:
            waiting.moves(request.tenant, request.batch_id, request.model)
        self._settled = settled

    def _shut(self) -> Circuit | None:
        """The circuit that stands for the model's backends, where they take nothing but trials."""
        route = self._tools.route(self._request.model)
        return route.circuit if route is not None and route.is_shut else None
