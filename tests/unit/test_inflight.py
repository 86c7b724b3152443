"""The rule of the in-flight limit, on a clock of the test's own."""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import pytest

from batchwright.rules.inflight import InFlightLimit
from batchwright.rules.load import Bounds, Change, Signal
from batchwright.rules.slowness import Slowness


@dataclass
class Backend:
    """Answers in rounds: as many at once as are allowed, of which `slots` are worked on at a time."""

    limit: InFlightLimit
    slots: float = 64
    seconds: float = 1.0
    now: float = 0.0
    changes: list[Change] = field(default_factory=list[Change])
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
                self.tell(Signal.ANSWERED, at, at - took, count)
            self.now += latency

    def tell(self, signal: Signal, at: float, sent_at: float, in_flight: int) -> None:
        change = self.limit.ended(signal, sent_at=sent_at, now=at, in_flight=in_flight, among=in_flight)
        if change is not None:
            self.changes.append(change)


def limit(ceiling: int = 100, floor: int = 1) -> InFlightLimit:
    return InFlightLimit(Bounds(floor, ceiling), 0.0)


def refuse(limit: InFlightLimit, *, at: float, sent_at: float, times: int = 1) -> list[int]:
    seen: list[int] = []
    for _ in range(times):
        limit.ended(Signal.REFUSED, sent_at=sent_at, now=at, in_flight=100, among=100)
        seen.append(limit.current)
    return seen


def test_it_begins_at_its_ceiling() -> None:
    assert limit(37).current == 37


def test_what_is_refused_at_once_lowers_the_limit_by_as_many() -> None:
    assert refuse(limit(), at=10.0, sent_at=9.9, times=5) == [99, 98, 97, 96, 95]


def test_refusals_of_one_instant_are_one_signal_and_lower_it_to_70_percent_at_most() -> None:
    assert refuse(limit(), at=10.0, sent_at=9.9, times=90)[-1] == 70


def test_what_was_sent_before_the_limit_fell_says_nothing_new() -> None:
    held = limit()
    refuse(held, at=10.0, sent_at=9.9, times=40)
    assert refuse(held, at=60.0, sent_at=9.95, times=3) == [70] * 3
    assert refuse(held, at=61.0, sent_at=60.5, times=40)[-1] == 49


@dataclass
class Gateway:
    """Before 128 slots and answers of a second; refuses at once by `refuses(among)`."""

    refuses: Callable[[int], bool]
    limit: InFlightLimit = field(default_factory=lambda: limit(128))
    limits: list[int] = field(default_factory=list[int])

    def run(self, seconds: int) -> None:
        for second in range(seconds):
            count = self.limit.current
            refused = [place for place in range(1, count + 1) if self.refuses(place)]
            for signal, places, took in (
                (Signal.REFUSED, refused, 0.02),
                (Signal.ANSWERED, sorted({*range(1, count + 1)} - {*refused}), 1.0),
            ):
                for place in places:
                    sent = float(second)
                    self.limit.ended(signal, sent_at=sent, now=sent + took, in_flight=count, among=place)
            self.limits.append(self.limit.current)


@pytest.mark.parametrize("share", [0.01, 0.05, 0.2, 0.3])
def test_refusals_that_come_whatever_is_in_flight_are_let_be(share: float) -> None:
    chance = Random(3)
    gateway = Gateway(lambda among: chance.random() < share)
    gateway.run(200)
    assert sum(gateway.limits[20:]) / 180 > 100


def test_refusals_of_what_is_too_much_end_and_are_never_usual() -> None:
    gateway = Gateway(lambda among: among > 30)
    gateway.run(200)
    assert 20 < sum(gateway.limits[20:]) / 180 < 45


def test_a_gateway_that_refuses_some_and_then_loses_capacity_gets_less() -> None:
    chance = Random(3)
    gateway = Gateway(lambda among: chance.random() < 0.1)
    gateway.run(50)
    gateway.refuses = lambda among: among > 20 or chance.random() < 0.1
    gateway.run(100)
    assert sum(gateway.limits[-50:]) / 50 < 40


def test_at_its_floor_it_finds_back_though_some_are_still_refused() -> None:
    chance = Random(3)
    gateway = Gateway(lambda among: True)
    gateway.run(30)
    assert gateway.limit.current == 1
    gateway.refuses = lambda among: chance.random() < 0.25
    gateway.run(300)
    assert sum(gateway.limits[-50:]) / 50 > 60


def test_a_backend_that_mostly_refuses_gets_little_whatever_the_reason() -> None:
    chance = Random(3)
    gateway = Gateway(lambda among: chance.random() < 0.7)
    gateway.run(100)
    assert sum(gateway.limits[-50:]) / 50 < 20


def test_a_timeout_weighs_more_than_a_refusal() -> None:
    held = limit()
    assert held.ended(Signal.TIMED_OUT, sent_at=1.0, now=10.0, in_flight=100, among=100) is Change.TIMED_OUT
    assert held.current == 50


def test_it_never_falls_below_its_floor() -> None:
    held = limit(floor=3)
    for second in range(100):
        refuse(held, at=second + 0.9, sent_at=second + 0.5)
    assert held.current == 3


def test_of_a_limit_that_was_not_reached_what_was_in_flight_is_lowered() -> None:
    held = limit()
    for _ in range(20):
        held.ended(Signal.REFUSED, sent_at=9.9, now=10.0, in_flight=20, among=20)
    assert held.current == 14


def test_what_says_nothing_changes_nothing() -> None:
    held = limit()
    assert held.ended(Signal.NOTHING, sent_at=0.0, now=500.0, in_flight=100, among=100) is None
    assert held.current == 100


def test_it_is_back_within_seconds_of_a_short_refusal() -> None:
    backend = Backend(limit(64), slots=64)
    backend.answer(5)
    refuse(backend.limit, at=backend.now, sent_at=backend.now - 0.1, times=40)
    assert backend.limit.current < 50
    backend.answer(25)
    assert backend.limit.current >= 60


def test_requests_that_only_queue_are_not_sent() -> None:
    backend = Backend(limit(100), slots=25)
    backend.answer(60)
    assert 20 <= backend.limit.current <= 40
    assert Change.LESS_TRIED in backend.changes


def test_a_backend_that_becomes_slow_without_a_queue_keeps_its_requests() -> None:
    backend = Backend(limit(60), slots=1000)
    backend.answer(20)
    backend.seconds = 5.0
    backend.answer(30)
    slow = backend.changes.index(Change.SLOW)
    assert Change.TRIED_IN_VAIN in backend.changes[slow:]
    assert backend.limits[-10:].count(60) >= 5  # less is still tried now and then


def test_a_backend_that_lost_slots_without_saying_so_gets_less() -> None:
    backend = Backend(limit(64), slots=64)
    backend.answer(20)
    backend.slots = 16
    backend.answer(20)
    assert backend.limit.current <= 28


def test_quick_answers_are_never_called_slow() -> None:
    backend = Backend(limit(16), slots=1, seconds=0.001)
    backend.answer(4000)
    assert backend.changes == []
    assert backend.limit.current == 16


def test_long_answers_after_short_ones_are_no_slowdown() -> None:
    slowness = Slowness()
    for _ in range(5):
        levels = [slowness.sample(kind, seconds) for kind, seconds in [("short", 0.1), ("long", 3.0)] * 10]
        slowness.take(sum(levels) / len(levels))
    only_long = [slowness.sample("long", 3.0) for _ in range(10)]
    assert 0.8 < slowness.times(sum(only_long) / 10) < 1.25


def test_the_kinds_that_are_remembered_are_bounded() -> None:
    slowness = Slowness()
    for kind in range(5000):
        slowness.sample(kind, 1.0)
        slowness.take(0.0)
    assert len(vars(slowness)["_usual"]) <= 512
