"""Asking a line: hooks, the backend, the next one where that takes nothing; and jobs that end later."""

import time
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from activities.slices.ends import End, Stop
from activities.slices.flight import Flight
from activities.slices.hedging import Hedging
from activities.slices.jobs import Jobs, passed_on
from activities.slices.judge import Judge, Request
from activities.slices.ownership import Ownership
from activities.slices.pace import Pace
from activities.slices.tools import Tools
from activities.slices.vouching import vouch
from batchwright.contracts.execution import SliceRequest
from batchwright.contracts.openai import Endpoint
from batchwright.inference.hooks import Call
from batchwright.inference.outcomes import Outcome
from batchwright.inference.routes import Lane, Route, Sending, Sends
from batchwright.rules.retries import NOT_NOW
from batchwright.telemetry.traffic import CHAT, GROUPED_CHAT


class Asking:
    """Of one turn."""

    def __init__(
        self,
        tools: Tools,
        request: SliceRequest,
        *,
        route: Route,
        judge: Judge,
        owner: Ownership,
        stop: Stop,
        pace: Pace,
        jobs: Jobs,
    ) -> None:
        self._tools, self._request, self._route, self._judge = tools, request, route, judge
        self._owner, self._stop, self._pace, self._jobs = owner, stop, pace, jobs
        self._traffic, self._budget = tools.traffic, tools.budget
        self._extra, self._has_hooks = passed_on(request), bool(tools.hooks)
        self._joins = tools.senders.joins(route.model, request.endpoint)
        self._hedging = Hedging(
            tools, route=route, judge=judge, owner=owner, stop=stop, pace=pace, count=self._count_unwanted
        )
        self._chat = CHAT if request.endpoint is Endpoint.CHAT_COMPLETIONS else ""

    def begin(self, flight: Flight, ended: Callable[[Outcome], None]) -> bool:
        """Whether the request went out at once; `ended` is told what came of it, which is yet to be `heard`.

        Where it did not, something has to be awaited first: `ask`.
        """
        line, sending, request = flight.line, flight.sending, flight.request
        attempt = line.attempt
        if attempt.job is not None or attempt.unanswered or sending.lane.jobs is not None:
            return False
        if self._has_hooks or self._joins or self._route.hedge_after:
            return False
        line.vouched = False
        body, request_id = request.body, request.request_id
        place = sending, self._request.endpoint
        flight.exchange = self._route.start(*place, body, request_id, self._extra, ended)
        return flight.exchange is not None

    def heard(self, flight: Flight, outcome: Outcome) -> Outcome:
        """What came of a request that went out at once, counted, as its line shows it."""
        sending, model = flight.sending, self._route.model
        lane, endpoint = sending.lane, self._request.endpoint
        flight.seconds = seconds = lane.circuit.clock() - sending.begun.sent_at
        category = outcome.verdict.category
        place = model, lane.backend.url
        self._traffic.ended(
            *place, status=outcome.status, category=category, seconds=seconds, chat=self._chat
        )
        if lane.model != model or endpoint is Endpoint.EMBEDDINGS:
            outcome = self._route.shown(lane, endpoint, flight.request.body, outcome)
        self._learn(flight, outcome)
        return outcome

    async def ask(self, flight: Flight) -> Outcome | None:
        """What came of it; None where the slice is another's meanwhile. Goes on from an outcome, if any."""
        request = flight.request
        if (job := flight.line.attempt.job) is not None:
            flight.job_since = job.since
            outcome = await self._jobs.follow(flight.line, request, flight.sending)
            if self._stop.end is End.LOST:
                return None
            self._count(flight, outcome, max(time.time() - job.since, 0.0))
            return outcome
        called: Request | Outcome = await self._called(request) if self._has_hooks else request
        refused: Sequence[Lane] = ()
        outcome = flight.outcome
        while True:
            if outcome is None:
                outcome = called if isinstance(called, Outcome) else await self._send(flight, called)
                self._learn(flight, outcome)
            if self._stop.end is End.LOST:
                return None
            lane = flight.sending.lane
            if outcome.verdict.budget not in NOT_NOW or not self._passes_on(flight, outcome, refused):
                return outcome
            refused = [*refused, lane]
            outcome = None

    def _learn(self, flight: Flight, outcome: Outcome) -> None:
        flight.permit.tell(outcome)
        self._budget.learn(len(outcome.body))

    async def _called(self, request: Request) -> Request | Outcome:
        """As the hooks leave it, or what they settle it with."""
        slice_ = self._request
        place = (slice_.tenant, slice_.batch_id, request.custom_id, slice_.model, slice_.endpoint.value)
        call = await self._tools.hooks(Call(*place, request.body))
        return call if isinstance(call, Outcome) else replace(request, body=call.body)

    async def _send(self, flight: Flight, request: Request) -> Outcome:
        line, sending, endpoint = flight.line, flight.sending, self._request.endpoint
        if line.attempt.unanswered:
            await vouch(line, sending)
        else:
            line.vouched = False
        backend = sending.lane.backend
        sender: Sends = backend.client
        if self._joins:
            sender = self._tools.senders.of(backend, self._route.model, endpoint)
        started = time.monotonic()
        if sending.lane.jobs is None:
            outcome = await self._asked(flight, request, sender)
            if flight.sending is not sending:
                started = flight.sending.begun.sent_at
        else:
            outcome = await self._jobs.run(line, request, sending)
        seconds = time.monotonic() - started
        self._count(flight, outcome, seconds, grouped=sender is not backend.client)
        return outcome

    async def _asked(self, flight: Flight, request: Request, sender: Sends) -> Outcome:
        what = self._request.endpoint, request.body, request.request_id, self._extra
        after = self._route.hedge_after
        if not after or self._joins:
            return await self._route.send(flight.sending, sender, *what)
        return await self._hedging.send(
            flight, lambda sending: self._route.send(sending, sending.lane.backend.client, *what), after
        )

    def _count_unwanted(self, sending: Sending, outcome: Outcome) -> None:
        """A request whose answer no line takes."""
        circuit = sending.lane.circuit
        self._traffic.ended(
            self._route.model,
            sending.lane.backend.url,
            status=outcome.status,
            category=outcome.verdict.category,
            seconds=circuit.clock() - sending.begun.sent_at,
            chat=self._chat,
        )

    def _count(self, flight: Flight, outcome: Outcome, seconds: float, *, grouped: bool = False) -> None:
        """A request that has ended: a job that cannot be asked after now has not."""
        if flight.line.attempt.job is not None and outcome.verdict.budget in NOT_NOW:
            return
        self._traffic.ended(
            self._route.model,
            flight.sending.lane.backend.url,
            status=outcome.status,
            category=outcome.verdict.category,
            seconds=seconds,
            chat=GROUPED_CHAT if grouped and self._chat else self._chat,
        )

    def _passes_on(self, flight: Flight, outcome: Outcome, refused: Sequence[Lane]) -> bool:
        """What one backend does not take goes to the next at once, with the same permit."""
        if flight.line.attempt.job is not None:
            return False  # that backend has it, and cannot be asked after it
        if self._stop.now() is not None or not self._owner.may_send or not self._pace.may_send:
            return False
        lane = flight.sending.lane
        is_full = self._tools.permits.backends.is_full
        following = self._route.begin(flight.line.prefix_hash, without=[*refused, lane], is_full=is_full)
        if following is None:
            return False
        self._judge.lane_refused(outcome, flight.sending)
        flight.sending.end()
        flight.sending = following
        flight.permit.place(following.lane.backend.url)
        self._pace.sent()
        self._tools.metrics.passed_on.labels(self._request.model).inc()
        return True
