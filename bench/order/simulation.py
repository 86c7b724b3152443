"""Simulation of one tenant's batches, which wait for permits of one model.

A permit is the right to have one request in flight.
"""

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from statistics import mean

from batchwright.rules.dispatch.batch_ranking import WaitingBatch
from bench.limits.backend import Clock
from bench.order.rules import MODEL, OrderRule, Request
from bench.order.scenarios import MEDIAN_SECONDS, PERMITS, Arrival, Scenario
from bench.shares.simulation import jains_index

_MAX_SECONDS = 48 * 3600.0


@dataclass(frozen=True)
class OrderResult:
    """Result of one run, or of several runs.

    `times` and `evenness` do not include batches that expired.

    Attributes:
        times: mean seconds from the creation of a batch to its last response, by size or priority.
        in_time: fraction of the batches that ended within their completion windows.
        evenness: Jain's index of the slowdowns of the batches; 1 if all slowdowns are equal. The slowdown of
            a batch is its duration, divided by its estimated duration without other batches.
        longest_pause: longest time in seconds in which a batch with unsent lines sent nothing.
        rate: responses per second until the last response.
    """

    times: dict[str, float]
    in_time: float
    evenness: float
    longest_pause: float
    rate: float


@dataclass(eq=False)
class _Batch:
    arrival: Arrival
    unsent: int
    unanswered: int
    last_sent: float
    pause: float = 0.0
    ended_at: float = math.inf


class Simulation:
    """A simulation of one tenant's batches for one model, on a virtual clock that jumps from event to event.

    A rule decides from which batch the next line is sent. To compare rules, run a simulation with the same
    scenario and seed for each rule. Each line then has the same response time under all rules.
    """

    def __init__(self, scenario: Scenario, rule: OrderRule, seed: int) -> None:
        self._scenario, self._rule, self._seed = scenario, rule, seed
        self._clock, self._used = Clock(), 0
        self._batches: dict[str, _Batch] = {}
        self._unanswered: dict[str, _Batch] = {}  # the batches that have lines left
        self._seconds: dict[str, Random] = {}
        self._mu = math.log(MEDIAN_SECONDS)
        self._last_answer = 0.0

    def run(self) -> OrderResult:
        arrivals = self._scenario.arrivals(Random(self._seed))
        for number, arrival in enumerate(arrivals):
            self._clock.at(arrival.at, lambda arrival=arrival, id=f"{number:06}": self._create(id, arrival))
        self._clock.run(_MAX_SECONDS)
        batches = self._batches.values()
        ended = [batch for batch in batches if batch.ended_at < math.inf]
        times: dict[str, list[float]] = defaultdict(list)
        for batch in ended:
            size, priority = batch.arrival.size, f"priority {batch.arrival.priority}"
            key = size if size in self._scenario.groups else priority
            times[key].append(batch.ended_at - batch.arrival.at)
        answers = sum(batch.arrival.lines - batch.unanswered for batch in batches)
        return OrderResult(
            {key: mean(found) for key, found in sorted(times.items())},
            len(ended) / len(batches),
            jains_index([self._slowdown(batch) for batch in ended]),
            max(batch.pause for batch in batches),
            answers / (self._last_answer - arrivals[0].at),
        )

    def _slowdown(self, batch: _Batch) -> float:
        seconds = MEDIAN_SECONDS * math.exp(0.5)
        alone = seconds * max(1.0, batch.arrival.lines / PERMITS)
        return (batch.ended_at - batch.arrival.at) / alone

    def _create(self, id: str, arrival: Arrival) -> None:
        batch = _Batch(arrival, arrival.lines, arrival.lines, arrival.at)
        self._batches[id] = self._unanswered[id] = batch
        self._seconds[id] = Random(f"{self._seed} {id}")
        self._rule.add(Request(id, arrival.priority), self._clock.now)
        self._grant()

    def _grant(self) -> None:
        now = self._clock.now
        while self._used < PERMITS:
            request = self._rule.pop(now, self._left)
            if request is None:
                return
            batch = self._batches[request.batch_id]
            if now >= batch.arrival.at + batch.arrival.window:
                continue  # the batch has expired, so its other lines are not sent
            batch.unsent -= 1
            batch.pause, batch.last_sent = max(batch.pause, now - batch.last_sent), now
            self._used += 1
            seconds = self._seconds[request.batch_id].lognormvariate(self._mu, 1.0)
            self._clock.after(seconds, lambda request=request, batch=batch: self._end(request, batch))
            if batch.unsent:
                self._rule.add(Request(request.batch_id, request.priority), now)

    def _end(self, request: Request, batch: _Batch) -> None:
        self._used -= 1
        batch.unanswered -= 1
        self._last_answer = self._clock.now
        if not batch.unanswered:
            del self._unanswered[request.batch_id]
            if self._clock.now <= batch.arrival.at + batch.arrival.window:
                batch.ended_at = self._clock.now
        self._rule.release(request, self._clock.now)
        self._grant()

    def _left(self) -> list[WaitingBatch]:
        return [
            WaitingBatch(
                MODEL,
                "tenant",
                id,
                batch.arrival.priority,
                batch.unanswered,
                batch.arrival.at,
                batch.arrival.at + batch.arrival.window,
            )
            for id, batch in self._unanswered.items()
            if self._clock.now < batch.arrival.at + batch.arrival.window
        ]


def runs(scenario: Scenario, make: Callable[[], OrderRule], seeds: range) -> OrderResult:
    """Simulate the scenario once for each seed, with a new rule from `make`.

    The result has the maximum of `longest_pause`, and the means of all other values.
    """
    results = [Simulation(scenario, make(), seed).run() for seed in seeds]
    keys = sorted({key for result in results for key in result.times})
    return OrderResult(
        {key: mean(result.times[key] for result in results if key in result.times) for key in keys},
        mean(result.in_time for result in results),
        mean(result.evenness for result in results),
        max(result.longest_pause for result in results),
        mean(result.rate for result in results),
    )
