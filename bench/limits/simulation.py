"""A batch that sends whatever it may, and people who ask beside it, at one engine."""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from statistics import mean
from typing import NamedTuple

from batchwright.inference.circuit import Circuit, Try
from batchwright.rules.load import Signal
from bench.limits.engine import Asked, Clock, Engine, Make
from bench.limits.limits import Limit

SECONDS, WARM = 240.0, 30.0
_REFUSAL_SECONDS = 0.02
_RECOVERED = 0.9
_PATIENCE = 0.5


@dataclass(frozen=True)
class Scenario:
    """`bursts` of `burst` interactive requests a second; the batch gives a request up after `timeout`."""

    name: str
    make: Make
    timeout: float = 60.0
    burst: float = 0.0
    bursts: tuple[tuple[float, float], ...] = ()
    back_at: float = 0.0  # when trouble is over


@dataclass
class Result:
    """Goodput is a share of what the engine could answer, `queue` requests, `recovery` seconds."""

    goodput: float = 0.0
    in_trouble: float = 0.0  # goodput from the beginning of the trouble to its end
    refused: float = 0.0  # per 100 answers
    timed_out: float = 0.0  # the same
    queue: float = 0.0
    held_up: float = (
        0.0  # of the interactive requests, those that waited for a slot longer than half a second
    )
    recovery: float = 0.0

    @classmethod
    def over(cls, results: list["Result"]) -> "Result":
        return cls(**{name: mean(getattr(result, name) for result in results) for name in vars(cls())})


class _Sent(NamedTuple):
    at: float
    among: int


@dataclass
class _Batch:
    clock: Clock
    engine: Engine
    limit: Limit
    timeout: float
    answered: list[float] = field(default_factory=list[float])
    refused: int = 0
    timed_out: int = 0
    in_flight: int = 0
    waits: bool = False

    def __post_init__(self) -> None:
        self.circuit = Circuit(5, clock=lambda: self.clock.now)

    def send(self) -> None:
        while self.in_flight < self.limit.current:
            wait = self.circuit.wait()
            if wait:
                return self._wait(max(wait, 0.01))
            self._ask()

    def _ask(self) -> None:
        self.in_flight += 1
        sent, begun = _Sent(self.clock.now, self.in_flight), self.circuit.begin()
        open_requests: list[Asked] = []
        asked = self.engine.ask(lambda: self._answered(sent, begun, open_requests))
        if asked is None:
            return self.clock.after(_REFUSAL_SECONDS, lambda: self._refused(sent, begun))
        open_requests.append(asked)
        self.clock.after(self.timeout, lambda: self._late(sent, begun, open_requests))

    def _answered(self, sent: _Sent, begun: Try, open_requests: list[Asked]) -> None:
        open_requests.clear()
        self.circuit.succeeded(begun)
        self.answered.append(self.clock.now)
        self._ended(Signal.ANSWERED, sent)

    def _refused(self, sent: _Sent, begun: Try) -> None:
        self.refused += 1
        self.circuit.failed(begun, "busy")
        self._ended(Signal.REFUSED, sent)

    def _late(self, sent: _Sent, begun: Try, open_requests: list[Asked]) -> None:
        if open_requests:
            self.engine.leave(open_requests.pop())
            self.timed_out += 1
            self.circuit.aborted(begun)
            self._ended(Signal.TIMED_OUT, sent)

    def _ended(self, signal: Signal, sent: _Sent) -> None:
        self.limit.ended(
            signal, sent_at=sent.at, now=self.clock.now, in_flight=self.in_flight, among=sent.among
        )
        self.in_flight -= 1
        self.clock.after(0.0, self.send)  # a timer, so that a refusal is no recursion

    def _wait(self, seconds: float) -> None:
        """One timer is enough."""
        if not self.waits:
            self.waits = True
            self.clock.after(seconds, self._waited)

    def _waited(self) -> None:
        self.waits = False
        self.send()


@dataclass
class _People:
    """Interactive requests, at random instants while a burst lasts; they wait like everybody."""

    clock: Clock
    engine: Engine
    random: Random
    asked: list[Asked] = field(default_factory=list[Asked])

    def burst(self, rate: float, since: float, until: float) -> None:
        when = since
        while (when := when + self.random.expovariate(rate)) < until:
            self.clock.at(when, self._ask)

    def _ask(self) -> None:
        asked = self.engine.ask(lambda: None)
        if asked is not None:
            self.asked.append(asked)

    def held_up(self) -> float:
        late = sum(not 0 <= asked.begun <= asked.arrived + _PATIENCE for asked in self.asked)
        return late / len(self.asked) if self.asked else 0.0


def run(scenario: Scenario, limit: Limit, seed: int) -> Result:
    """One run of 240 s; the first 30 do not count."""
    clock, random = Clock(), Random(seed)
    engine = Engine(scenario.make, clock, random)
    batch = _Batch(clock, engine, limit, scenario.timeout)
    people = _People(clock, engine, random)
    for since, until in scenario.bursts:
        people.burst(scenario.burst, since, until)
    clock.at(0.0, batch.send)
    clock.run(WARM)
    queued = engine.queued_seconds
    refused, timed_out = batch.refused, batch.timed_out
    clock.run(SECONDS)
    counted = [at for at in batch.answered if at >= WARM]
    return Result(
        goodput=len(counted) / scenario.make.most_answers(WARM, SECONDS),
        in_trouble=_in_trouble(scenario, counted),
        refused=100 * (batch.refused - refused) / len(counted),
        timed_out=100 * (batch.timed_out - timed_out) / len(counted),
        queue=(engine.queued_seconds - queued) / (SECONDS - WARM),
        held_up=people.held_up(),
        recovery=_recovery(scenario, counted),
    )


def runs(scenario: Scenario, make: Callable[[], Limit], seeds: range) -> Result:
    """The mean over seeds."""
    return Result.over([run(scenario, make(), seed) for seed in seeds])


def _in_trouble(scenario: Scenario, answered: list[float]) -> float:
    if not scenario.make.trouble:
        return 0.0
    since, until = scenario.make.trouble[0].since, scenario.make.trouble[-1].until
    return sum(since <= at < until for at in answered) / scenario.make.most_answers(since, until)


def _recovery(scenario: Scenario, answered: list[float]) -> float:
    """Seconds from the end of trouble to the first three seconds at 90 % of what the engine can."""
    if not scenario.back_at:
        return 0.0
    late = [at - scenario.back_at for at in answered if at >= scenario.back_at]
    wanted = _RECOVERED * 3 * scenario.make.slots / scenario.make.seconds
    for second in range(int(SECONDS - scenario.back_at) - 3):
        if sum(second <= at < second + 3 for at in late) >= wanted:
            return float(second)
    return SECONDS - scenario.back_at
