"""Simulates a batch that sends as many requests as its concurrency limit allows.

At the same time, interactive users send requests to the same backend.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from statistics import mean
from typing import NamedTuple

from batchwright.inference.circuits.circuit_breaker import CircuitAttempt, CircuitBreaker
from batchwright.rules.limits.backend_load import LoadSignal
from bench.limits.algorithms import LimitAlgorithm
from bench.limits.backend import BackendModel, BackendSimulation, Clock, SimulatedRequest

SECONDS, WARM = 240.0, 30.0
_REFUSAL_SECONDS = 0.02
_RECOVERED = 0.9
_PATIENCE = 0.5


@dataclass(frozen=True)
class Scenario:
    """A simulated situation in which concurrency limits are compared.

    Attributes:
        timeout: seconds after which a request of the batch is abandoned.
        burst: interactive requests per second during a burst.
        bursts: start and end of each burst of interactive requests, in seconds.
        back_at: end of the disturbance in seconds; 0 if there is no disturbance. The recovery time is
            measured from this time.
    """

    name: str
    backend: BackendModel
    timeout: float = 60.0
    burst: float = 0.0
    bursts: tuple[tuple[float, float], ...] = ()
    back_at: float = 0.0  # end of the disturbance


@dataclass
class LimitResult:
    """Result of one run, or mean of several runs.

    Attributes:
        goodput: number of the batch's responses, divided by the number that the backend could send if all
            of its slots were always in use.
        queue: mean number of requests that wait at the backend.
        recovery: seconds from the end of the disturbance until the rate of the batch's responses is again
            90 % of the backend's capacity.
    """

    goodput: float = 0.0
    in_trouble: float = 0.0  # goodput during the disturbance
    refused: float = 0.0  # per 100 responses
    timed_out: float = 0.0  # per 100 responses
    queue: float = 0.0
    held_up: float = 0.0  # share of interactive requests that waited for a slot for more than half a second
    recovery: float = 0.0

    @classmethod
    def over(cls, results: list["LimitResult"]) -> "LimitResult":
        return cls(**{name: mean(getattr(result, name) for result in results) for name in vars(cls())})


class _Sent(NamedTuple):
    at: float
    in_flight_when_sent: int


@dataclass
class BatchTraffic:
    """A simulated sender of a batch's requests. The concurrency limit is `limit`.

    Attributes:
        lines: number of requests that are left to send.
    """

    clock: Clock
    engine: BackendSimulation
    limit: LimitAlgorithm
    timeout: float
    answered: list[float] = field(default_factory=list[float])
    refused: int = 0
    timed_out: int = 0
    in_flight: int = 0
    waits: bool = False
    lines: float = math.inf

    def __post_init__(self) -> None:
        self.circuit = CircuitBreaker(5, clock=lambda: self.clock.now)

    def send(self) -> None:
        while self.lines and self.in_flight < self.limit.current:
            wait = self.circuit.wait_seconds()
            if wait:
                return self._retry_after(max(wait, 0.01))
            self._ask()

    def _ask(self) -> None:
        self.in_flight += 1
        self.lines -= 1
        sent, attempt = _Sent(self.clock.now, self.in_flight), self.circuit.begin()
        pending: list[SimulatedRequest] = []
        request = self.engine.submit(lambda: self._answered(sent, attempt, pending))
        if request is None:
            return self.clock.after(_REFUSAL_SECONDS, lambda: self._rejected(sent, attempt))
        pending.append(request)
        self.clock.after(self.timeout, lambda: self._timed_out(sent, attempt, pending))

    def _answered(self, sent: _Sent, attempt: CircuitAttempt, pending: list[SimulatedRequest]) -> None:
        pending.clear()
        self.circuit.record_success(attempt)
        self.answered.append(self.clock.now)
        self._ended(LoadSignal.RESPONDED, sent)

    def _rejected(self, sent: _Sent, attempt: CircuitAttempt) -> None:
        self.refused += 1
        self.circuit.record_failure(attempt, "busy")
        self._ended(LoadSignal.REJECTED, sent)

    def _timed_out(self, sent: _Sent, attempt: CircuitAttempt, pending: list[SimulatedRequest]) -> None:
        if pending:
            self.engine.abandon(pending.pop())
            self.timed_out += 1
            self.circuit.record_abort(attempt)
            self._ended(LoadSignal.TIMED_OUT, sent)

    def _ended(self, signal: LoadSignal, sent: _Sent) -> None:
        self.limit.on_complete(
            signal,
            sent_at=sent.at,
            now=self.clock.now,
            in_flight=self.in_flight,
            in_flight_when_sent=sent.in_flight_when_sent,
        )
        self.in_flight -= 1
        self.clock.after(0.0, self.send)  # a timer, so that a rejection does not recurse

    def _retry_after(self, seconds: float) -> None:
        """Set a timer that calls `send` after `seconds`. If a timer is already set, do nothing."""
        if not self.waits:
            self.waits = True
            self.clock.after(seconds, self._retry)

    def _retry(self) -> None:
        self.waits = False
        self.send()


@dataclass
class _InteractiveTraffic:
    """Requests of interactive users, sent at random times during bursts (short periods with many requests).

    They wait in the same queue of the backend as the requests of the batch.
    """

    clock: Clock
    engine: BackendSimulation
    random: Random
    requests: list[SimulatedRequest] = field(default_factory=list[SimulatedRequest])

    def burst(self, rate: float, since: float, until: float) -> None:
        when = since
        while (when := when + self.random.expovariate(rate)) < until:
            self.clock.at(when, self._ask)

    def _ask(self) -> None:
        request = self.engine.submit(lambda: None)
        if request is not None:
            self.requests.append(request)

    def held_up(self) -> float:
        late = sum(not 0 <= request.started_at <= request.arrived + _PATIENCE for request in self.requests)
        return late / len(self.requests) if self.requests else 0.0


def run(scenario: Scenario, limit: LimitAlgorithm, seed: int) -> LimitResult:
    """Simulate 240 seconds of a batch with the concurrency limit `limit`, and return the result.

    The result does not include the first 30 seconds.
    """
    clock, random = Clock(), Random(seed)
    engine = BackendSimulation(scenario.backend, clock, random)
    batch = BatchTraffic(clock, engine, limit, scenario.timeout)
    people = _InteractiveTraffic(clock, engine, random)
    for since, until in scenario.bursts:
        people.burst(scenario.burst, since, until)
    clock.at(0.0, batch.send)
    clock.run(WARM)
    queued = engine.queue_seconds
    refused, timed_out = batch.refused, batch.timed_out
    clock.run(SECONDS)
    counted = [at for at in batch.answered if at >= WARM]
    return LimitResult(
        goodput=len(counted) / scenario.backend.max_responses(WARM, SECONDS),
        in_trouble=_in_trouble(scenario, counted),
        refused=100 * (batch.refused - refused) / len(counted),
        timed_out=100 * (batch.timed_out - timed_out) / len(counted),
        queue=(engine.queue_seconds - queued) / (SECONDS - WARM),
        held_up=people.held_up(),
        recovery=_recovery(scenario, counted),
    )


def runs(scenario: Scenario, make: Callable[[], LimitAlgorithm], seeds: range) -> LimitResult:
    """Simulate the scenario once for each seed, and return the mean of the results.

    Each run has a new limit from `make`.
    """
    return LimitResult.over([run(scenario, make(), seed) for seed in seeds])


def _in_trouble(scenario: Scenario, answered: list[float]) -> float:
    if not scenario.backend.trouble:
        return 0.0
    since, until = scenario.backend.trouble[0].since, scenario.backend.trouble[-1].until
    return sum(since <= at < until for at in answered) / scenario.backend.max_responses(since, until)


def _recovery(scenario: Scenario, answered: list[float]) -> float:
    """Return the seconds from the end of the disturbance until the rate of responses has recovered.

    The rate has recovered when it is at least 90 % of the backend's capacity for three seconds. If it does
    not recover, return the seconds until the end of the simulation. Return 0.0 if the scenario has no
    disturbance.
    """
    if not scenario.back_at:
        return 0.0
    late = [at - scenario.back_at for at in answered if at >= scenario.back_at]
    wanted = _RECOVERED * 3 * scenario.backend.slots / scenario.backend.seconds
    for second in range(int(SECONDS - scenario.back_at) - 3):
        if sum(second <= at < second + 3 for at in late) >= wanted:
            return float(second)
    return SECONDS - scenario.back_at
