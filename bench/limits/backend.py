"""Simulated backend on a virtual clock.

The backend has slots (places for the requests that it processes at the same time), a queue of requests that
wait for a slot, and disturbances.
"""

import heapq
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count, pairwise
from random import Random


class Clock:
    """A virtual clock, which calls functions at given times.

    The clock does not wait. Its time jumps directly to the time of the next call.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def at(self, when: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._due, (when, next(self._numbers), what))

    def after(self, seconds: float, what: Callable[[], None]) -> None:
        self.at(self.now + seconds, what)

    def run(self, until: float) -> None:
        while self._due and self._due[0][0] <= until:
            self.now, _, what = heapq.heappop(self._due)
            what()
        self.now = until


@dataclass(frozen=True)
class Disturbance:
    """A period in which the backend is slower or has fewer slots.

    Attributes:
        since: start of the period in seconds.
        until: end of the period in seconds.
        slots: number of slots during the period.
        slower: factor by which responses take longer.
    """

    since: float
    until: float
    slots: int
    slower: float = 1.0


@dataclass(frozen=True)
class BackendModel:
    """Properties of a simulated backend.

    Attributes:
        slots: number of requests that the backend processes at the same time.
        queue: number of requests that may wait for a slot. Further requests are rejected.
        seconds: mean time of a response in seconds.
        rejection_rate: fraction of requests that are rejected at random, from 0 to 1.
        trouble: the disturbances, in order of time.
    """

    slots: int = 64
    queue: float = math.inf
    seconds: float = 1.0
    spread: float = 0.4  # sigma of the lognormal factor
    rejection_rate: float = 0.0
    trouble: tuple[Disturbance, ...] = ()

    def at(self, now: float) -> tuple[int, float]:
        """Return the number of slots, and the factor by which responses take longer, at the time `now`."""
        for trouble in self.trouble:
            if trouble.since <= now < trouble.until:
                return trouble.slots, trouble.slower
        return self.slots, 1.0

    def max_responses(self, since: float, until: float) -> float:
        """Return the number of responses from `since` to `until` if all slots are always in use."""
        edges = {since, until, *(t.since for t in self.trouble), *(t.until for t in self.trouble)}
        inside = sorted(edge for edge in edges if since <= edge <= until)
        total = 0.0
        for left, right in pairwise(inside):
            slots, slower = self.at(left)
            total += (right - left) * slots / (self.seconds * slower)
        return total


@dataclass(eq=False)
class SimulatedRequest:
    """One request at the simulated backend. `done` is called when the response arrives."""

    work: float  # seconds, without a disturbance
    done: Callable[[], None]
    arrived: float
    started_at: float = -1.0
    is_abandoned: bool = False


@dataclass
class BackendSimulation:
    model: BackendModel
    clock: Clock
    random: Random
    running: int = 0
    waiting: deque[SimulatedRequest] = field(default_factory=deque[SimulatedRequest])
    queue_seconds: float = 0.0  # sum of the waiting times of all requests
    _accounted_at: float = 0.0

    def __post_init__(self) -> None:
        for trouble in self.model.trouble:
            self.clock.at(trouble.until, self._begin)

    def submit(self, done: Callable[[], None]) -> SimulatedRequest | None:
        """Send a request and return it. Return None if the backend rejects the request.

        `done` is called when the response arrives.
        """
        self._account()
        slots, _ = self.model.at(self.clock.now)
        if self.running >= slots and len(self.waiting) >= self.model.queue:
            return None
        if self.model.rejection_rate and self.random.random() < self.model.rejection_rate:
            return None
        spread = self.model.spread
        work = self.model.seconds * self.random.lognormvariate(-spread * spread / 2, spread)
        request = SimulatedRequest(work, done, self.clock.now)
        self.waiting.append(request)
        self._begin()
        return request

    def abandon(self, request: SimulatedRequest) -> None:
        """Abandon a request, and free its slot or its position in the queue.

        The function `done` of the request is then never called.
        """
        self._account()
        request.is_abandoned = True
        if request.started_at >= 0:
            self.running -= 1
            self._begin()
        else:
            self.waiting.remove(request)

    def _begin(self) -> None:
        self._account()
        slots, slower = self.model.at(self.clock.now)
        while self.waiting and self.running < slots:
            request = self.waiting.popleft()
            request.started_at = self.clock.now
            self.running += 1
            self.clock.after(request.work * slower, lambda request=request: self._end(request))

    def _end(self, request: SimulatedRequest) -> None:
        if request.is_abandoned:
            return
        self._account()
        self.running -= 1
        request.done()
        self._begin()

    def _account(self) -> None:
        self.queue_seconds += len(self.waiting) * (self.clock.now - self._accounted_at)
        self._accounted_at = self.clock.now
