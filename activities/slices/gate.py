"""What a turn may do at the moment: send, wait, or end."""

import time

from activities.slices.caution import GROUP, Caution
from activities.slices.ends import End, Stop
from activities.slices.flight import Flight
from activities.slices.ownership import Ownership
from activities.slices.pace import Pace
from activities.slices.sink import SegmentSink
from activities.slices.tools import Tools
from activities.slices.work import SliceWork
from batchwright.contracts.execution import SliceRequest
from batchwright.inference.routes import Route

PATIENCE_SECONDS = 3.0  # a slice that can send nothing for longer gives its slot back


class Gate:
    """Of one turn; asked before each line goes out."""

    def __init__(
        self,
        tools: Tools,
        request: SliceRequest,
        *,
        route: Route,
        work: SliceWork,
        sink: SegmentSink,
        owner: Ownership,
        stop: Stop,
        caution: Caution,
        pace: Pace,
    ) -> None:
        self._budget, self._permissions, self._seconds = (
            tools.budget,
            tools.permissions,
            request.slice_seconds,
        )
        self._route, self._work, self._sink, self._owner, self._stop = route, work, sink, owner, stop
        self._is_careful, self._pace = caution.is_careful, pace
        self.flights: set[Flight] = set()  # those in the air
        self._opened = time.monotonic()
        self.began: float | None = None  # the first permit
        self.broken: BaseException | None = None

    def ending(self) -> End | None:
        if (end := self._stop.now()) is not None:
            return end
        if not self._work.unsettled or self.broken is not None:
            return End.FINISHED
        if self._is_time_over() or self._pace.is_over:
            return End.TURN_OVER
        return End.DEFERRED if not self.flights and self.blocked() > PATIENCE_SECONDS else None

    def _is_time_over(self) -> bool:
        """Timed from the first permit; without one the slot goes to whoever has waited as long for a slot.

        A batch's later slices get what its first one leaves: they would keep others from coming in at all.
        """
        if self.began is None:
            return time.monotonic() - self._opened >= max(self._seconds, PATIENCE_SECONDS)
        return time.monotonic() - self.began >= self._seconds

    def blocked(self) -> float:
        """Seconds for which it is known that nothing can be sent."""
        return max(self._work.wait(), self._route.wait(), self._pace.wait())

    def lets_send(self) -> bool:
        return self._lets_send(time.monotonic())

    def _lets_send(self, now: float) -> bool:
        return (
            now <= self._sink.overdue_at
            and self._owner.may_send
            and self._permissions.is_fresh
            and not self._route.wait()
            and self._budget.has_room
            and self._pace.may_send
            and (not self._is_careful or len(self.flights) < GROUP)
        )

    def is_open(self) -> bool:
        """Whether the line in hand may go out. Asked for each line: all there is to ask, in one place."""
        stop, began, now = self._stop, self.began, time.monotonic()
        return (
            stop.end is None
            and time.time() < stop.closes_at
            and self.broken is None
            and self._work.unsettled > 0
            and (now - began < self._seconds if began is not None else not self._is_time_over())
            and self._lets_send(now)
        )
