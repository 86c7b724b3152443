"""An engine on a virtual clock: slots, a queue before them, and trouble that comes and goes."""

import heapq
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count, pairwise
from random import Random


class Clock:
    """What happens when; nothing waits in reality."""

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
class Trouble:
    """From `since` to `until` the engine has so many slots and takes `slower` times as long."""

    since: float
    until: float
    slots: int
    slower: float = 1.0


@dataclass(frozen=True)
class Make:
    """`queue` requests may wait for a slot, one more is refused; `seconds` is an answer's mean time.

    Of all requests the share `flaky` is refused, whatever is in flight.
    """

    slots: int = 64
    queue: float = math.inf
    seconds: float = 1.0
    spread: float = 0.4  # sigma of the lognormal factor
    flaky: float = 0.0
    trouble: tuple[Trouble, ...] = ()

    def at(self, now: float) -> tuple[int, float]:
        """Slots, and how many times slower."""
        for trouble in self.trouble:
            if trouble.since <= now < trouble.until:
                return trouble.slots, trouble.slower
        return self.slots, 1.0

    def most_answers(self, since: float, until: float) -> float:
        """That it can give while it is never idle."""
        edges = {since, until, *(t.since for t in self.trouble), *(t.until for t in self.trouble)}
        inside = sorted(edge for edge in edges if since <= edge <= until)
        total = 0.0
        for left, right in pairwise(inside):
            slots, slower = self.at(left)
            total += (right - left) * slots / (self.seconds * slower)
        return total


@dataclass(eq=False)
class Asked:
    """One request at the engine; `done` is called when it is answered."""

    work: float  # seconds, on an engine without trouble
    done: Callable[[], None]
    arrived: float
    begun: float = -1.0
    gone: bool = False


@dataclass
class Engine:
    make: Make
    clock: Clock
    random: Random
    running: int = 0
    waiting: deque[Asked] = field(default_factory=deque[Asked])
    queued_seconds: float = 0.0  # requests waiting, times how long
    _looked: float = 0.0

    def __post_init__(self) -> None:
        for trouble in self.make.trouble:
            self.clock.at(trouble.until, self._begin)

    def ask(self, done: Callable[[], None]) -> Asked | None:
        """None: refused."""
        self._account()
        slots, _ = self.make.at(self.clock.now)
        if self.running >= slots and len(self.waiting) >= self.make.queue:
            return None
        if self.make.flaky and self.random.random() < self.make.flaky:
            return None
        spread = self.make.spread
        work = self.make.seconds * self.random.lognormvariate(-spread * spread / 2, spread)
        asked = Asked(work, done, self.clock.now)
        self.waiting.append(asked)
        self._begin()
        return asked

    def leave(self, asked: Asked) -> None:
        """Who asked gave up: its place is free."""
        self._account()
        asked.gone = True
        if asked.begun >= 0:
            self.running -= 1
            self._begin()
        else:
            self.waiting.remove(asked)

    def _begin(self) -> None:
        self._account()
        slots, slower = self.make.at(self.clock.now)
        while self.waiting and self.running < slots:
            asked = self.waiting.popleft()
            asked.begun = self.clock.now
            self.running += 1
            self.clock.after(asked.work * slower, lambda asked=asked: self._end(asked))

    def _end(self, asked: Asked) -> None:
        if asked.gone:
            return
        self._account()
        self.running -= 1
        asked.done()
        self._begin()

    def _account(self) -> None:
        self.queued_seconds += len(self.waiting) * (self.clock.now - self._looked)
        self._looked = self.clock.now
