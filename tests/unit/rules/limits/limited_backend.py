"""A simulated backend that answers requests in rounds, and the adaptive limit on its requests in flight."""

from dataclasses import dataclass, field
from random import Random

from batchwright.rules.limits.adaptive_limit import AdaptiveLimit
from batchwright.rules.limits.backend_load import LoadSignal
from batchwright.rules.limits.limit_trial import LimitBounds, LimitChange


@dataclass
class Backend:
    """A simulated backend that answers in rounds.

    In each round, as many requests arrive as the limit allows. If there are more than `slots`, all of them
    take longer.
    """

    limit: AdaptiveLimit
    slots: float = 64
    seconds: float = 1.0
    now: float = 0.0
    changes: list[LimitChange] = field(default_factory=list[LimitChange])
    limits: list[int] = field(default_factory=list[int])
    random: Random = field(default_factory=lambda: Random(7))

    def answer(self, rounds: int) -> None:
        for _ in range(rounds):
            count = self.limit.current
            self.limits.append(count)
            latency = self.seconds * max(1.0, count / self.slots)
            for place in range(count):
                at = self.now + latency * (1 + place / count)
                took = latency * self.random.uniform(0.9, 1.1)
                self.report(LoadSignal.RESPONDED, at, at - took, count)
            self.now += latency

    def report(self, signal: LoadSignal, at: float, sent_at: float, in_flight: int) -> None:
        change = self.limit.on_complete(
            signal, sent_at=sent_at, now=at, in_flight=in_flight, in_flight_when_sent=in_flight
        )
        if change is not None:
            self.changes.append(change)


def limit(ceiling: int = 100) -> AdaptiveLimit:
    return AdaptiveLimit(LimitBounds(ceiling), 0.0)


def refuse(limit: AdaptiveLimit, *, at: float, sent_at: float, times: int = 1) -> list[int]:
    seen: list[int] = []
    for _ in range(times):
        limit.on_complete(
            LoadSignal.REJECTED, sent_at=sent_at, now=at, in_flight=100, in_flight_when_sent=100
        )
        seen.append(limit.current)
    return seen
