"""One turn of a slice: who sends when, and how it ends."""

import asyncio
import time

from activities.slices.asking import Asking, Flight
from activities.slices.caution import GROUP, Caution
from activities.slices.ends import End, Stop
from activities.slices.jobs import Jobs
from activities.slices.judge import Judge
from activities.slices.ownership import Ownership
from activities.slices.pace import Pace
from activities.slices.sink import SegmentSink
from activities.slices.tools import Tools
from activities.slices.work import Line, SliceWork
from batchwright.contracts.execution import SliceRequest
from batchwright.inference.limits import Permit, Waiter
from batchwright.inference.routes import Route, Sending

PATIENCE_SECONDS = 3.0  # a slice that can send nothing for longer gives its slot back
_LOOK_AGAIN_SECONDS = 0.25


class Turn:
    """Asks what is ready while it may, with one waiter for a permit at a time."""

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
        self._tools, self._request, self._route = tools, request, route
        self._work, self._judge, self._sink, self._owner, self._stop = work, judge, sink, owner, stop
        self._caution = caution
        self._pace = Pace(lambda: tools.rates.pacing_of(request.model))
        self._jobs = Jobs(tools, request, route=route, judge=judge, sink=sink, stop=stop)
        self._asking = Asking(
            tools, request, route=route, judge=judge, owner=owner, stop=stop, pace=self._pace, jobs=self._jobs
        )
        self._sending: dict[Flight, asyncio.Task[None]] = {}
        self._wake = asyncio.Event()
        self._waiter: Waiter | None = None  # for a permit, until it is withdrawn
        self._ticking: asyncio.TimerHandle | None = None
        self._began: float | None = None  # the first permit
        self._broken: BaseException | None = None

    async def forget_jobs(self) -> None:
        """Once all that settled is stored: what backends told of these lines is of no more use."""
        await self._jobs.forget()

    @property
    def has_sent(self) -> bool:
        return self._began is not None

    def wake(self) -> None:
        """Look at `stop` now."""
        waiter = self._waiter
        if waiter is not None and not waiter.done() and (self._ending() or not self._may_dispatch()):
            self._waiter = None
            waiter.cancel()
        self._wake.set()

    def _tick(self) -> None:
        self.wake()
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
        if self._broken is not None:
            raise self._broken
        return end

    async def _dispatch(self) -> End:
        while True:
            end = self._ending()
            if end is not None:
                return end
            line = self._work.next() if self._may_dispatch() else None
            if line is None:
                if not await self._ask_suspect():
                    await self._rest(min(self._blocked() or _LOOK_AGAIN_SECONDS, _LOOK_AGAIN_SECONDS))
                continue
            if self._rejects(line):
                continue
            if self._caution.is_careful and not line.attempt.noted_by:
                await self._note(line)
            permit = await self._permit()
            if permit is None:
                self._work.return_first(line)
            elif self._rejects(line):
                permit.release()
            else:
                self._send(line, permit)

    def _rejects(self, line: Line) -> bool:
        """Whether the tenant may not send the line any more, which then is settled."""
        refusal = self._tools.refusal(self._request, has_job=line.attempt.job is not None)
        if not refusal:
            return False
        self._judge.reject(line, self._work.bytes_of(line), refusal)
        self._work.unsettled -= 1
        return True

    def _ending(self) -> End | None:
        end = self._stop.now()
        if end is not None:
            return end
        if not self._work.unsettled or self._broken is not None:
            return End.FINISHED
        if self._began is not None and time.monotonic() - self._began >= self._request.slice_seconds:
            return End.TURN_OVER
        if self._pace.is_over:
            return End.TURN_OVER
        return End.DEFERRED if not self._sending and self._blocked() > PATIENCE_SECONDS else None

    def _blocked(self) -> float:
        """Seconds for which it is known that nothing can be sent."""
        return max(self._work.wait(), self._route.wait(), self._pace.wait())

    def _may_dispatch(self) -> bool:
        return (
            self._owner.may_send
            and not self._route.wait()
            and not self._sink.is_overdue
            and self._tools.budget.has_room
            and self._pace.may_send
            and self._tools.permissions.is_fresh
            and (not self._caution.is_careful or len(self._sending) < GROUP)
        )

    async def _note(self, line: Line) -> None:
        """Written down with some that follow, so that it is known what was asked if the worker dies of it."""
        group = [line]
        while len(group) < GROUP and (following := self._work.next()) is not None:
            group.append(following)
        for one in group:
            self._judge.note(one, self._caution.note)
        await self._sink.close(lambda: self._stop.now() is None)
        for one in reversed(group[1:]):
            self._work.return_first(one)

    async def _ask_suspect(self) -> bool:
        """Whether a line that a worker may have died of was taken up: alone, after all others."""
        alone = self._tools.alone
        if self._sending or not self._may_dispatch() or alone.locked():
            return False
        line = self._work.next_suspect()
        if line is None or self._rejects(line):
            return line is not None
        async with alone:
            self._judge.note(line, self._caution.note)
            await self._sink.close(lambda: self._stop.now() is None)
            permit = await self._permit()
            if permit is None:
                self._work.put_back(line)
                return True
            self._send(line, permit)
            while self._sending and self._stop.now() is None:
                await self._rest(_LOOK_AGAIN_SECONDS)
        return True

    async def _rest(self, seconds: float) -> None:
        """Until something happened or it is time to look again."""
        self._wake.clear()
        timer = asyncio.get_running_loop().call_later(seconds, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            timer.cancel()

    async def _permit(self) -> Permit | None:
        """None if the turn has to end, or may not send, before there is one."""
        request, permits = self._request, self._tools.permits
        if permit := permits.take(request.model, request.tenant, request.weight):
            return permit
        waiter = self._waiter = permits.request(request.model, request.tenant, request.weight)
        try:
            permit = await waiter
        except asyncio.CancelledError:
            if self._waiter is waiter:  # not withdrawn: the turn itself is cancelled
                raise
            return None
        finally:
            self._waiter = None
        if self._stop.now() is not None or not self._may_dispatch():
            permit.release()
            return None
        return permit

    def _send(self, line: Line, permit: Permit) -> None:
        sending = self._begin(line)
        if sending is None:  # every backend was taken by a trial meanwhile
            permit.release()
            self._work.put_back(line)
            return
        if self._began is None:
            self._began = time.monotonic()
        if line.attempt.job is None:
            self._pace.sent()
        permit.place(sending.lane.backend.url)
        flight = Flight(line, permit, sending, self._tools.budget.expect(line.length))
        self._sending[flight] = asyncio.create_task(self._fly(flight))

    def _begin(self, line: Line) -> Sending | None:
        """Where its job runs; without one, any backend."""
        if line.attempt.job is not None:
            found = self._route.resume(line.attempt.job.lane)
            if found is not None:
                return found
            self._judge.job_ended(line)  # its backend is no longer one of the model's, or asked otherwise
        is_full = self._tools.permits.backends.is_full
        return self._route.begin(line.prefix_hash, rather_not=line.failed_at, is_full=is_full)

    async def _fly(self, flight: Flight) -> None:
        """From the request to what it does to the line."""
        try:
            await self._ask(flight)
        except Exception as error:
            self._broken = error
            self.wake()
        finally:
            self._land(flight)

    def _land(self, flight: Flight) -> None:
        del self._sending[flight]
        flight.permit.release()
        self._tools.budget.drop_answer(flight.held)
        flight.sending.end()
        self._wake.set()

    async def _ask(self, flight: Flight) -> None:
        line = flight.line
        request = self._judge.request(line, self._work.bytes_of(line))
        outcome = await self._asking.ask(flight, request)
        if outcome is None:
            return
        if self._judge.settle(line, request, outcome, flight.sending):
            self._work.unsettled -= 1
        else:
            line.failed_at = flight.sending.lane
            self._work.put_back(line)

    async def _wait_for_answers(self, end: End) -> End:
        """Requests in flight finish; how long they may is the end's grace."""
        while self._sending:
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
        tasks = list(self._sending.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for flight in list(self._sending):  # cancelled before its first step, a task runs none of its code
            self._land(flight)
