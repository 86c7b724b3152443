"""Hedging: a line that waits long for its answer is asked of a second backend too (decision 0056).

Only where the registry says so of the model, and only with capacity that nothing else waits for.
"""

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager

from msgspec import Struct

from activities.slices.ends import Stop
from activities.slices.flight import Flight
from activities.slices.judge import Judge
from activities.slices.ownership import Ownership
from activities.slices.pace import Pace
from activities.slices.tools import Tools
from batchwright.inference.limits import Permit
from batchwright.inference.outcomes import Outcome
from batchwright.inference.routes import Route, Sending
from batchwright.rules.retries import NOT_NOW, SUCCESS, Budget

_LOOK_AGAIN_SECONDS = 1.0  # for a backend with room
Send = Callable[[Sending], Awaitable[Outcome]]


class _Second(Struct, eq=False):
    """What a line's second request holds."""

    sending: Sending
    permit: Permit
    held: int  # bytes of the budget


class Hedging:
    """Of one turn."""

    def __init__(
        self,
        tools: Tools,
        *,
        route: Route,
        judge: Judge,
        owner: Ownership,
        stop: Stop,
        pace: Pace,
        count: Callable[[Sending, Outcome], None],
    ) -> None:
        """`count` is told of an answer that no line takes."""
        self._tools, self._route, self._judge, self._count = tools, route, judge, count
        self._owner, self._stop, self._pace = owner, stop, pace
        self._hedged, self._model = tools.metrics.hedged, route.model

    async def send(self, flight: Flight, send: Send, after: float) -> Outcome:
        """What came of the line's request, or of a second one after so long, whichever settles it first.

        Where it is the second one, the flight goes on as if that had been its request. The other one is
        called off, which uses no attempt. An answer that settles nothing waits for the other one's.
        """
        first = asyncio.ensure_future(send(flight.sending))
        try:
            await asyncio.wait([first], timeout=after)
            while not first.done():
                second = self._second(flight)
                if second is not None:
                    return await self._either(flight, first, second, send)
                await asyncio.wait([first], timeout=_LOOK_AGAIN_SECONDS)
            return first.result()
        finally:
            await _called_off(first)

    async def _either(
        self, flight: Flight, first: asyncio.Future[Outcome], second: _Second, send: Send
    ) -> Outcome:
        with self._held(second):
            other = asyncio.ensure_future(send(second.sending))
            try:
                await asyncio.wait([first, other], return_when=asyncio.FIRST_COMPLETED)
                if not (_settles(first) or _settles(other)):
                    await asyncio.wait([first, other])
            finally:
                await _called_off(other)
            won = _settles(other) and not _settles(first)
            self._hedged.labels(self._model, "won" if won else "lost").inc()
            if not won:
                self._lost(second.sending, second.permit, other)
                return first.result()
            await _called_off(first)
            self._lost(flight.sending, flight.permit, first)
            flight.sending, second.sending = second.sending, flight.sending
            flight.permit, second.permit = second.permit, flight.permit
            return other.result()

    def _second(self, flight: Flight) -> _Second | None:
        """A request at another backend that has room nobody waits for; None: there is none now."""
        permits, budget, line = self._tools.permits, self._tools.budget, flight.line
        if self._stop.now() is not None or not (
            self._owner.may_send and self._pace.may_send and budget.has_room
        ):
            return None
        here = flight.sending.lane.backend
        without = [lane for lane in self._route.lanes if lane.backend is here]
        sending = self._route.begin(line.prefix_hash, without=without, is_full=permits.backends.is_full)
        if sending is None:
            return None
        lane = sending.lane
        permit = None
        if lane.backend is not here and not sending.begun.is_trial:
            permit = permits.spare(self._model, lane.backend.url)
        if permit is None:
            sending.end()
            return None
        permit.place(lane.backend.url)
        self._pace.sent()
        return _Second(sending, permit, budget.expect(line.length))

    @contextmanager
    def _held(self, second: _Second) -> Generator[None]:
        """What is left of the two when one of them has become the flight's is given back."""
        try:
            yield
        finally:
            self._tools.budget.answers -= second.held
            second.sending.end()
            second.permit.release()

    def _lost(self, sending: Sending, permit: Permit, request: asyncio.Future[Outcome]) -> None:
        """The line does not take its answer, if there is one; its backend is judged by that all the same."""
        if request.cancelled():
            return
        outcome = request.result()
        permit.tell(outcome)
        self._count(sending, outcome)
        if outcome.verdict is SUCCESS:
            sending.lane.circuit.succeeded(sending.begun)
        elif outcome.verdict.budget in NOT_NOW:
            self._judge.lane_refused(outcome, sending)


def _settles(request: asyncio.Future[Outcome]) -> bool:
    if not request.done() or request.cancelled():
        return False
    return request.result().verdict.budget is Budget.SETTLED


async def _called_off(request: asyncio.Future[Outcome]) -> None:
    """It has ended when this returns, whatever came of it."""
    request.cancel()
    await asyncio.wait([request])
