"""The compared rules: first in, first out; all batches equally often; and Batchwright's own rule.

A rule decides which batch of a tenant gets the next permit, the right to have one request in flight.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol

from batchwright.rules.dispatch.batch_ranking import BatchSchedule, WaitingBatch
from batchwright.rules.dispatch.fair_queue import FairQueue
from batchwright.rules.dispatch.fair_queue import FairShare as Shares

MODEL = "m"
_UPDATE_SECONDS = 2.0  # how often workers read which batches have lines left


@dataclass(eq=False)
class Request:
    """A request of a simulated batch that waits to be sent."""

    batch_id: str
    priority: int
    number: int = 0
    key_id: str = ""
    weight: float = 1.0
    priorities: Shares | None = None
    cost: Callable[[], float] | None = None


class OrderRule(Protocol):
    def add(self, request: Request, now: float) -> None: ...

    def pop(self, now: float, left: Callable[[], Collection[WaitingBatch]]) -> Request | None:
        """Remove and return the request to send next. Return None if no request waits.

        `left` returns the batches that still have lines to send.
        """
        ...

    def release(self, request: Request, now: float) -> None: ...


class FirstInFirstOut:
    """Rule that sends all lines of the oldest batch first. Priorities are ignored."""

    def __init__(self) -> None:
        self._waiting: dict[str, Request] = {}

    def add(self, request: Request, now: float) -> None:
        self._waiting[request.batch_id] = request

    def pop(self, now: float, left: Callable[[], Collection[WaitingBatch]]) -> Request | None:
        if not self._waiting:
            return None
        return self._waiting.pop(min(self._waiting))  # ids are in the order of creation

    def release(self, request: Request, now: float) -> None:
        pass


class FairShare(FirstInFirstOut):
    """Rule by which all batches send equally often: one request each in turn. Priorities are ignored."""

    def pop(self, now: float, left: Callable[[], Collection[WaitingBatch]]) -> Request | None:
        if not self._waiting:
            return None
        return self._waiting.pop(next(iter(self._waiting)))


class Batchwright:
    """Batchwright's rule: each priority gets a part of the permits; higher priorities get greater parts.

    Among batches of the same priority, those that risk missing their deadlines come first, then small
    batches.
    """

    def __init__(self) -> None:
        self._queue = FairQueue[Request]()
        self._schedule, self._updated_at = BatchSchedule(), -_UPDATE_SECONDS

    def add(self, request: Request, now: float) -> None:
        self._queue.add(request, now)

    def pop(self, now: float, left: Callable[[], Collection[WaitingBatch]]) -> Request | None:
        if now - self._updated_at >= _UPDATE_SECONDS:
            self._schedule.update(left(), now)
            self._updated_at = now
        request = self._queue.pop(lambda _: False, self._schedule.ranks(MODEL), now)
        if request is not None:
            request.priorities = self._queue.shares
        return request

    def release(self, request: Request, now: float) -> None:
        if request.priorities is not None:
            request.priorities.release(str(request.priority), now, is_contended=True)


RULES: dict[str, Callable[[], OrderRule]] = {
    "first in, first out": FirstInFirstOut,
    "fair share": FairShare,
    "Batchwright": Batchwright,
}
