"""A turn's flights: each line that has a permit is asked, and what comes of it is done to the line."""

import asyncio
from collections.abc import Callable
from functools import partial

from activities.slices.asking import Asking
from activities.slices.crew import Crew
from activities.slices.ends import End, Stop
from activities.slices.flight import Flight
from activities.slices.gate import Gate
from activities.slices.judge import Judge
from activities.slices.work import SliceWork
from batchwright.inference.outcomes import Outcome
from batchwright.rules.retries import SUCCESS


class Flying:
    """Of one turn.

    A request that can go out at once is awaited by nobody: its answer is heard where it is read, which costs
    less than a task. What comes before a request, and after one that was no success, may wait: it has a task.
    """

    def __init__(
        self,
        *,
        asking: Asking,
        work: SliceWork,
        judge: Judge,
        stop: Stop,
        gate: Gate,
        wake: asyncio.Event,
        landed: Callable[[Flight], None],
    ) -> None:
        """`landed` follows each flight, whatever came; `wake` is set where the turn has to end."""
        self._asking, self._work, self._judge, self._stop = asking, work, judge, stop
        self._gate, self._wake = gate, wake
        self._flights = gate.flights
        self._crew = Crew(self._fly, landed, self._flights)

    def begin(self, flight: Flight) -> None:
        self._flights.add(flight)
        try:
            if not self._asking.begin(flight, partial(self._heard, flight)):
                self._crew.launch(flight)
        except BaseException:
            self._crew.land(flight)
            raise

    async def ground(self) -> None:
        """Calls off all that is in the air. Nothing is begun any more."""
        for flight in self._flights:
            if flight.exchange is not None:
                flight.exchange.call_off()
        await self._crew.ground()

    def _heard(self, flight: Flight, outcome: Outcome) -> None:
        """Called while its answer is read, in nobody's context: it raises nothing, and logs nothing."""
        flight.exchange = None
        try:
            outcome = self._asking.heard(flight, outcome)
            if self._stop.end is not End.LOST:
                if outcome.verdict is not SUCCESS or flight.sending.lane.circuit.is_open:
                    flight.outcome = outcome
                    self._crew.launch(flight)
                    return
                self._judge.keep(flight.line, flight.request, outcome, flight.sending, flight.seconds)
                self._work.unsettled -= 1
        except Exception as error:
            self._break(error)
        self._crew.land(flight)

    async def _fly(self, flight: Flight) -> None:
        """From the request to what it does to the line."""
        try:
            outcome = await self._asking.ask(flight)
            if outcome is not None:
                self._settle(flight, outcome)
        except Exception as error:
            self._break(error)

    def _break(self, error: Exception) -> None:
        self._gate.broken = error
        self._wake.set()

    def _settle(self, flight: Flight, outcome: Outcome) -> None:
        line, sending = flight.line, flight.sending
        if self._judge.settle(line, flight.request, outcome, sending, job_since=flight.job_since):
            self._work.unsettled -= 1
        else:
            line.failed_at = flight.sending.lane
            self._work.put_back(line)
