"""One turn of a slice: who sends when, and how it ends."""

import asyncio
import time
from functools import partial

from activities.slices.asking import Asking
from activities.slices.caution import GROUP, Caution
from activities.slices.ends import End, Stop
from activities.slices.flight import Flight
from activities.slices.flying import Flying
from activities.slices.gate import Gate
from activities.slices.jobs import Jobs
from activities.slices.judge import Judge
from activities.slices.leave import Leave
from activities.slices.ownership import Ownership
from activities.slices.pace import Pace
from activities.slices.sink import SegmentSink
from activities.slices.tools import Tools
from activities.slices.work import Job, Line, SliceWork
from batchwright.contracts.execution import SliceRequest
from batchwright.inference.limits import Permit, PermitWaiter
from batchwright.inference.routes import Route, Sending

_LOOK_AGAIN_SECONDS = 0.25


class Turn:
    """Asks what is ready while it may; one of its lines at a time is in the queue for a permit.

    Whoever gives a permit back makes the next line go out, without waking anybody else (`_granted`). What
    takes longer than that, and what ends the turn, is looked after by `run`.
    """

    def __init__(
        self,
        tools: Tools,
        request: SliceRequest,
        *,
        route: Route,
        work: SliceWork,
        judge: Judge,
        sink: SegmentSink,
        owner: Ownership,
        stop: Stop,
        caution: Caution,
    ) -> None:
        self._tools, self._slice, self._route = tools, request, route
        self._work, self._judge, self._sink, self._stop = work, judge, sink, stop
        self._caution = caution
        self._pace = Pace(partial(tools.rates.pacing_of, request.model))
        self._jobs = Jobs(tools, request, route=route, judge=judge, sink=sink, stop=stop)
        asking = Asking(
            tools, request, route=route, judge=judge, owner=owner, stop=stop, pace=self._pace, jobs=self._jobs
        )
        self._gate = Gate(
            tools,
            request,
            route=route,
            work=work,
            sink=sink,
            owner=owner,
            stop=stop,
            caution=caution,
            pace=self._pace,
        )
        self._wake = asyncio.Event()
        self._flying = Flying(
            asking=asking,
            work=work,
            judge=judge,
            stop=stop,
            gate=self._gate,
            wake=self._wake,
            landed=self._landed,
        )
        self._leave = Leave(tools, request)
        self._is_full = tools.permits.backends.is_full
        place = request.model, request.tenant, request.weight, request.batch_id, request.number
        self._waiter = PermitWaiter(*place, self._granted)
        self._lined_up: Line | None = None  # what the waiter is in the queue for
        self._is_alone = False  # nothing else goes out
        self._must_note = False  # the next line, before it goes out
        self._ticking: asyncio.TimerHandle | None = None

    async def forget_jobs(self) -> None:
        """Once all that settled is stored: what backends told of these lines is of no more use."""
        await self._jobs.forget()

    @property
    def has_sent(self) -> bool:
        return self._gate.began is not None

    def wake(self) -> None:
        """Look at `stop` now."""
        if not self._gate.is_open():
            self._withdraw()
        self._wake.set()

    def _tick(self) -> None:
        self._reject_lined_up()
        self.wake()
        self._judge.show()
        self._tools.permits.look_again(self._slice.model)
        self._ticking = asyncio.get_running_loop().call_later(_LOOK_AGAIN_SECONDS, self._tick)

    async def run(self) -> End:
        """Sends until the turn ends; nothing is in flight any more when it returns.

        Raises:
            PlanDamaged: a line cannot be read.
        """
        self._tick()
        try:
            end = await self._wait_for_answers(await self._dispatch())
        finally:
            await self._abort()
        if self._gate.broken is not None:
            raise self._gate.broken
        return end

    async def _dispatch(self) -> End:
        while True:
            if (end := self._gate.ending()) is not None:
                self._withdraw()
                return end
            if self._lined_up is None and self._gate.lets_send():
                self._line_up()
            if self._must_note:
                await self._note()
            elif not await self._ask_suspect():
                await self._rest(min(self._gate.blocked() or _LOOK_AGAIN_SECONDS, _LOOK_AGAIN_SECONDS))

    def _line_up(self) -> None:
        """Gets the next line into the queue for a permit. Where there is one, it goes out at once.

        Whether the line may be sent is looked at when it has one.
        """
        line = None if self._is_alone else self._work.next()
        if line is None:
            return
        if self._caution.is_careful and not line.attempt.noted_by:
            self._work.return_first(line)
            self._must_note = True
        else:
            self._lined_up = line
            self._tools.permits.line_up(self._waiter)

    def _withdraw(self) -> None:
        """Out of the queue."""
        line, self._lined_up = self._lined_up, None
        if line is not None:
            self._tools.permits.withdraw(self._waiter)
            self._work.return_first(line)

    def _granted(self, permit: Permit) -> None:
        """Called in the midst of what another turn does: it raises nothing, and binds no context."""
        line, self._lined_up = self._lined_up, None
        assert line is not None
        try:
            if not self._gate.is_open():
                permit.release()
                self._work.return_first(line)
            elif refusal := self._leave.refusal(line):
                self._reject(line, refusal)
                permit.release()
                self._line_up()
            elif self._send(line, permit):
                self._line_up()
        except Exception as error:
            permit.release()
            self._gate.broken = error
        if self._lined_up is None:
            self._wake.set()

    def _reject_lined_up(self) -> None:
        """Lines that may not be sent any more do not wait for permits that others hold."""
        line = self._lined_up
        if line is None or not self._leave.refusal(line):
            return
        self._withdraw()
        while (line := self._work.next()) is not None and self._rejects(line):
            pass
        if line is not None:
            self._work.return_first(line)

    def _rejects(self, line: Line) -> bool:
        """Whether the tenant may not send the line any more, which then is settled."""
        refusal = self._leave.refusal(line)
        if refusal:
            self._reject(line, refusal)
        return bool(refusal)

    def _reject(self, line: Line, refusal: str) -> None:
        self._judge.reject(line, self._work.bytes_of(line), refusal)
        self._work.unsettled -= 1
        self._wake.set()

    async def _note(self) -> None:
        """Writes some lines down that follow, so that it is known what was asked if the worker dies of it."""
        self._must_note = False
        group: list[Line] = []
        while len(group) < GROUP and (following := self._work.next()) is not None:
            group.append(following)
        for one in group:
            self._judge.note(one, self._caution.note)
        await self._sink.close(lambda: self._stop.now() is None)
        for one in reversed(group):
            self._work.return_first(one)

    async def _ask_suspect(self) -> bool:
        """Whether a line that a worker may have died of was taken up: alone, after all others."""
        alone = self._tools.alone
        if self._gate.flights or self._lined_up or not self._gate.lets_send() or alone.locked():
            return False
        line = self._work.next_suspect()
        if line is None or self._rejects(line):
            return line is not None
        async with alone:
            self._judge.note(line, self._caution.note)
            await self._sink.close(lambda: self._stop.now() is None)
            self._is_alone = True
            try:
                self._lined_up = line
                self._tools.permits.line_up(self._waiter)
                while (self._lined_up or self._gate.flights) and self._stop.now() is None:
                    await self._rest(_LOOK_AGAIN_SECONDS)
            finally:
                self._is_alone = False
        return True

    async def _rest(self, seconds: float) -> None:
        """Until something happened, maybe since the last rest, or it is time to look again."""
        timer = asyncio.get_running_loop().call_later(seconds, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            timer.cancel()
            self._wake.clear()

    def _send(self, line: Line, permit: Permit) -> bool:
        """Whether it is on its way; if not, trials have taken every backend meanwhile. Raises PlanDamaged."""
        request = self._judge.request(line, self._work.bytes_of(line))
        sending = None if line.attempt.job is None else self._resume(line, line.attempt.job)
        if sending is None:
            sending = self._route.begin(line.prefix_hash, rather_not=line.failed_at, is_full=self._is_full)
        if sending is None:
            permit.release()
            self._work.put_back(line)
            return False
        if self._gate.began is None:
            self._gate.began = time.monotonic()
        if line.attempt.job is None:
            self._pace.sent()
        permit.place(sending.lane.backend.url)
        held = self._tools.budget.expect(line.length)
        self._flying.begin(Flight(line, request, permit, sending, held))
        return True

    def _resume(self, line: Line, job: Job) -> Sending | None:
        """Where its job runs. None: that backend is no longer one of the model's, or asked otherwise."""
        found = self._route.resume(job.lane)
        if found is None:
            self._judge.job_ended(line)
        return found

    def _landed(self, flight: Flight) -> None:
        self._tools.budget.answers -= flight.held
        flight.sending.end()
        flight.permit.release()  # and whatever is next in the queue goes out
        if self._lined_up is None:
            self._wake.set()

    async def _wait_for_answers(self, end: End) -> End:
        """Requests in flight finish; how long they may is the end's grace."""
        while self._gate.flights:
            end = self._stop.now() or end
            left = self._stop.grace_left()
            if end is End.DRAINED:
                self._jobs.leave()
            if left <= 0:
                await self._jobs.call_off()
                break
            await self._rest(min(left, _LOOK_AGAIN_SECONDS))
        end = self._stop.now() or end
        return End.FINISHED if end is not End.LOST and not self._work.unsettled else end

    async def _abort(self) -> None:
        if self._ticking is not None:
            self._ticking.cancel()
        self._withdraw()
        await self._flying.ground()
        self._waiter.let_go()
        self._judge.show()
