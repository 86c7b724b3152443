"""One turn of a slice: who sends when, and how it ends."""

import asyncio
import time
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

from activities.slices.judge import Judge
from activities.slices.ownership import Ownership
from activities.slices.sink import SegmentSink
from activities.slices.work import Line, SliceWork
from batchwright.inference.circuit import Circuit
from batchwright.inference.client import InferenceClient
from batchwright.inference.limits import ByteBudget, Permit, Permits

_PATIENCE_SECONDS = 3.0  # a slice that can send nothing for longer gives its slot back
_LOOK_AGAIN_SECONDS = 0.25


class End(Enum):
    FINISHED = auto()
    TURN_OVER = auto()
    DEFERRED = auto()  # nothing can be sent now
    CLOSED = auto()  # the window
    STOPPED = auto()  # cancelled or paused
    DRAINED = auto()  # the worker is going away
    LOST = auto()  # another attempt owns the slice


@dataclass(frozen=True)
class Times:
    """Seconds; `closes_at` on the wall clock."""

    turn: float
    closes_at: float
    expiry_grace: float
    cancel_grace: float
    drain_grace: float


@dataclass(frozen=True)
class Share:
    """Whose permits the slice asks for."""

    model: str
    tenant: str
    weight: float


class TurnTools(NamedTuple):
    """What the turns of a process share."""

    client: InferenceClient
    circuit: Circuit
    permits: Permits
    budget: ByteBudget


class Turn:
    """Asks what is ready while it may, one waiter for a permit at a time; `stop` ends it from outside."""

    def __init__(
        self,
        work: SliceWork,
        judge: Judge,
        sink: SegmentSink,
        owner: Ownership,
        *,
        tools: TurnTools,
        share: Share,
        times: Times,
        url: str,
    ) -> None:
        self._work, self._judge, self._sink, self._owner = work, judge, sink, owner
        self._client, self._circuit, self._permits, self._budget = tools
        self._share, self._times, self._url = share, times, url
        self._sending: dict[asyncio.Task[None], Line] = {}
        self._wake = asyncio.Event()
        self._stopped: End | None = None
        self._stopped_at = 0.0
        self._began: float | None = None  # the first permit
        self._idle_since = time.monotonic()

    @property
    def has_sent(self) -> bool:
        return self._began is not None

    def stop(self, end: End) -> None:
        """Dispatch stops at once, requests in flight get the end's grace. The first end stays; LOST wins."""
        if self._stopped is None or end is End.LOST:
            self._stopped, self._stopped_at = end, time.monotonic()
        self._wake.set()

    async def run(self) -> End:
        """Sends until the turn ends; nothing is in flight any more when it returns."""
        try:
            end = await self._dispatch()
            return await self._wait_for_answers(end)
        finally:
            await self._abort()

    async def _dispatch(self) -> End:
        while True:
            end = self._ending()
            if end is not None:
                return end
            if not self._may_dispatch():
                await self._rest()
                continue
            line = self._work.next()
            if line is None:
                await self._rest()
                continue
            permit = await self._permit()
            if permit is None:
                self._work.return_first(line)
                continue
            self._send(line, permit)

    def _ending(self) -> End | None:
        if self._stopped is not None:
            return self._stopped
        if time.time() >= self._times.closes_at:
            return End.CLOSED
        if self._work.is_empty and not self._sending:
            return End.FINISHED
        now = time.monotonic()
        if self._began is not None and now - self._began >= self._times.turn:
            return End.TURN_OVER
        if not self._sending and self._blocked_for(now) > _PATIENCE_SECONDS:
            return End.DEFERRED
        return None

    def _blocked_for(self, now: float) -> float:
        """Seconds this slice has been, or will be, unable to send."""
        ahead = max(self._work.wait(), self._circuit.wait())
        return max(ahead, now - self._idle_since) if not self._may_dispatch() or ahead else 0.0

    def _may_dispatch(self) -> bool:
        return (
            self._owner.may_send
            and not self._circuit.wait()
            and not self._sink.is_overdue
            and self._budget.has_room
        )

    async def _rest(self, longest: float = _LOOK_AGAIN_SECONDS) -> None:
        """Until something happened or it is time to look again."""
        self._wake.clear()
        try:
            async with asyncio.timeout(longest):
                await self._wake.wait()
        except TimeoutError:
            return

    async def _permit(self) -> Permit | None:
        """None if the turn has to end, or may not send, before there is one."""
        future = self._permits.request(self._share.model, self._share.tenant, self._share.weight)
        while not future.done():
            future.add_done_callback(lambda _: self._wake.set())
            await self._rest()
            self._idle_since = time.monotonic()  # waiting for one's turn is not being blocked
            if not future.done() and (self._ending() is not None or not self._may_dispatch()):
                future.cancel()
                return None
        permit = future.result()
        if self._stopped is not None or not self._may_dispatch():
            permit.release()
            return None
        return permit

    def _send(self, line: Line, permit: Permit) -> None:
        now = time.monotonic()
        self._began = self._began or now
        self._idle_since = now
        self._circuit.begin()
        task = asyncio.create_task(self._ask(line, permit))
        self._sending[task] = line
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        line = self._sending.pop(task)
        if task.cancelled():
            self._circuit.aborted()
            self._work.return_first(line)
        self._idle_since = time.monotonic()
        self._wake.set()

    async def _ask(self, line: Line, permit: Permit) -> None:
        try:
            request = self._judge.request(line, self._work.bytes_of(line))
            outcome = await self._client.send(self._url, request.body, request.request_id)
        finally:
            permit.release()
        if self._stopped is End.LOST:
            return
        if not self._judge.settle(line, request, outcome):
            self._work.put_back(line)

    async def _wait_for_answers(self, end: End) -> End:
        """Requests in flight finish; how long they may is the end's grace."""
        while self._sending:
            end = self._worse(end)
            left = self._grace_left(end)
            if left <= 0:
                break
            await self._rest(min(left, _LOOK_AGAIN_SECONDS))
        await self._abort()
        end = self._worse(end)
        return End.FINISHED if end is not End.LOST and self._work.is_empty else end

    def _worse(self, end: End) -> End:
        """What came up while answers were awaited goes first."""
        if self._stopped is not None:
            return self._stopped
        return End.CLOSED if time.time() >= self._times.closes_at else end

    def _grace_left(self, end: End) -> float:
        times, since = self._times, time.monotonic() - self._stopped_at
        match end:
            case End.LOST:
                return 0.0
            case End.STOPPED:
                return times.cancel_grace - since
            case End.DRAINED:
                return times.drain_grace - since
            case End.CLOSED:
                return times.closes_at + times.expiry_grace - time.time()
            case _:
                return _LOOK_AGAIN_SECONDS

    async def _abort(self) -> None:
        tasks = list(self._sending)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
