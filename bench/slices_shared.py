"""`python -m bench.slices_shared`: how evenly workers share a batch's slices, simulated (decision 0050)."""

import heapq
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from statistics import mean

from batchwright.rules.slicing import LEAST_LINES, fewest_lines, lines_of_next

_SLOTS, _MOST = 4, 1024
_HANDED_OUT, _REQUEST, _SLICE = 0.02, 0.00025, 0.004  # seconds; the last two of a worker's CPU
_RUNS = 20


@dataclass(frozen=True)
class Case:
    """`lines` of `models` on `workers`, each with so many in flight; every answer takes `seconds`."""

    lines: int
    models: int
    workers: int
    in_flight: int
    seconds: float


CASES = (
    Case(500, 1, 4, 10, 2.0),
    Case(1000, 1, 2, 10, 2.0),
    Case(1000, 1, 4, 10, 2.0),
    Case(2000, 1, 4, 10, 2.0),
    Case(10_000, 1, 3, 10, 2.0),
    Case(10_000, 1, 4, 10, 2.0),
    Case(10_000, 1, 8, 10, 2.0),
    Case(4000, 3, 2, 64, 0.1),
    Case(20_000, 3, 2, 128, 0.05),
)
_Cut = Callable[[Case], list[int]]


@dataclass(eq=False)
class _Slice:
    model: int
    unsent: int
    in_flight: int = 0


@dataclass(eq=False)
class _Worker:
    slots: list[int]
    used: list[int]
    slices: list[_Slice] = field(default_factory=list[_Slice])
    busy_until: float = 0.0

    def spend(self, now: float, seconds: float) -> float:
        """When it is done with that: all of it runs on one event loop."""
        self.busy_until = max(self.busy_until, now) + seconds
        return self.busy_until


class _Run:
    def __init__(self, case: Case, sizes: list[int], seed: int) -> None:
        self._case, self._chance = case, random.Random(seed)
        models = range(case.models)
        self._queues = [deque(sizes) for _ in models]
        self._workers = [_Worker([_SLOTS for _ in models], [0 for _ in models]) for _ in range(case.workers)]
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._numbers = count()

    def seconds(self) -> float:
        for model in range(self._case.models):
            self._hand_out(0.0, model)
        now = 0.0
        while self._events:
            now, _, then = heapq.heappop(self._events)
            then(now)
        return now

    def _at(self, moment: float, then: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (moment, next(self._numbers), then))

    def _hand_out(self, now: float, model: int) -> None:
        """Each free slot asks; which of them is answered is chance."""
        while self._queues[model]:
            asking = [worker for worker in self._workers for _ in range(worker.slots[model])]
            if not asking:
                return
            worker, given = self._chance.choice(asking), _Slice(model, self._queues[model].popleft())
            worker.slots[model] -= 1
            self._at(now + _HANDED_OUT, lambda at, w=worker, s=given: self._begin(at, w, s))

    def _begin(self, now: float, worker: _Worker, given: _Slice) -> None:
        worker.slices.append(given)
        self._send(worker.spend(now, _SLICE), worker)

    def _send(self, now: float, worker: _Worker) -> None:
        """Of the models the one that uses least, of its slices the first."""
        while sum(worker.used) < self._case.in_flight:
            ready = [each for each in worker.slices if each.unsent]
            if not ready:
                return
            chosen = min(ready, key=lambda each: worker.used[each.model])
            chosen.unsent, chosen.in_flight = chosen.unsent - 1, chosen.in_flight + 1
            worker.used[chosen.model] += 1
            answered = worker.spend(now, _REQUEST) + self._case.seconds
            self._at(answered, lambda at, s=chosen: self._answered(at, worker, s))

    def _answered(self, now: float, worker: _Worker, of: _Slice) -> None:
        of.in_flight -= 1
        worker.used[of.model] -= 1
        if not of.unsent and not of.in_flight:
            worker.slices.remove(of)
            ended = worker.spend(now, _SLICE) + _HANDED_OUT
            self._at(ended, lambda at: self._freed(at, worker, of.model))
        self._send(now, worker)

    def _freed(self, now: float, worker: _Worker, model: int) -> None:
        worker.slots[model] += 1
        self._hand_out(now, model)


def shares(case: Case) -> list[int]:
    """As decision 0041 cut all plans: an eighth of what is left, 256 at least."""
    left, sizes = case.lines // case.models, list[int]()
    while left:
        sizes.append(min(left, _MOST, max(LEAST_LINES, left // 8)))
        left -= sizes[-1]
    return sizes


def ours(case: Case) -> list[int]:
    plan = left = case.lines // case.models
    fewest, sizes = fewest_lines(case.in_flight, case.lines), list[int]()
    while left:
        sizes.append(min(left, lines_of_next(plan, left, _MOST, fewest)))
        left -= sizes[-1]
    return sizes


def of_possible(case: Case, cut: _Cut, runs: int = _RUNS) -> float:
    """The batch's rate, of that of all permits in use all the time; the mean of some runs."""
    sizes = cut(case)
    best = case.models * sum(sizes) * case.seconds / (case.workers * case.in_flight)
    return mean(best / _Run(case, sizes, seed).seconds() for seed in range(runs))


def _row(case: Case) -> str:
    models = "" if case.models == 1 else f" of {case.models} models"
    what = f"{case.lines:,}{models}, {case.workers}, {case.in_flight}, {case.seconds:g} s"
    before, after = of_possible(case, shares), of_possible(case, ours)
    slices = f"{case.models * len(shares(case))}, {case.models * len(ours(case))}"
    return f"| {what} | {before:.0%} | {after:.0%} | {slices} |"


def main() -> None:
    print("| lines, workers, in flight each, an answer | as it was | equal | slices |\n|---|---:|---:|---:|")
    for case in CASES:
        print(_row(case), flush=True)


if __name__ == "__main__":
    main()
