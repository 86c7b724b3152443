"""The rule that adapts a limit to the response times of a backend, on a clock that the test sets."""

from dataclasses import dataclass
from random import Random
from statistics import mean

import pytest

from batchwright.rules.limits.adaptive_limit import AdaptiveLimit
from batchwright.rules.limits.backend_load import LoadSignal
from batchwright.rules.limits.limit_trial import LimitChange
from bench.limits.backend import BackendModel, BackendSimulation, Clock, Disturbance
from bench.limits.simulation import BatchTraffic
from tests.unit.rules.limits.limited_backend import Backend, limit


@dataclass
class Recorded:
    """An adaptive limit, and a record of its changes."""

    limit: AdaptiveLimit
    changes: list[LimitChange | None]

    @property
    def current(self) -> int:
        return self.limit.current

    def on_complete(
        self, signal: LoadSignal, *, sent_at: float, now: float, in_flight: int, in_flight_when_sent: int
    ) -> None:
        change = self.limit.on_complete(
            signal, sent_at=sent_at, now=now, in_flight=in_flight, in_flight_when_sent=in_flight_when_sent
        )
        self.changes.append(change)


def test_requests_that_only_queue_are_not_sent() -> None:
    backend = Backend(limit(100), slots=25)
    backend.answer(60)
    assert 20 <= backend.limit.current <= 40
    assert LimitChange.DECREASE_PROBE in backend.changes


def test_a_backend_that_becomes_slow_without_a_queue_keeps_its_requests() -> None:
    backend = Backend(limit(60), slots=1000)
    backend.answer(20)
    backend.seconds = 5.0
    backend.answer(30)
    slow = backend.changes.index(LimitChange.SLOW)
    assert backend.changes[slow : slow + 3] == [
        LimitChange.SLOW,
        LimitChange.SLOW,
        LimitChange.PROBE_REVERTED,
    ]
    assert backend.limits[-10:].count(60) >= 5  # less is still tried now and then


@pytest.mark.parametrize("spread", [0.2, 1.0])
@pytest.mark.parametrize("slow_seconds", [0.3, 1.0])
def test_responses_that_a_busy_worker_delays_for_a_moment_do_not_lower_the_limit(
    slow_seconds: float, spread: float
) -> None:
    hiccups = tuple(Disturbance(at, at + slow_seconds, 256, 3.0) for at in (9.0, 14.0, 19.0))
    clock = Clock()
    engine = BackendSimulation(
        BackendModel(slots=256, seconds=0.165, spread=spread, trouble=hiccups), clock, Random(2)
    )
    changes: list[LimitChange | None] = []
    batch = BatchTraffic(clock, engine, Recorded(limit(64), changes), timeout=60.0)
    clock.at(0.0, batch.send)
    clock.run(24.0)
    assert LimitChange.SLOW not in changes


@pytest.mark.parametrize("seconds", [0.165, 1.0])
def test_responses_that_stay_slow_lower_the_limit_within_a_few_seconds(seconds: float) -> None:
    clock = Clock()
    trouble = (Disturbance(30.0, 60.0, 16),)
    engine = BackendSimulation(
        BackendModel(slots=64, seconds=seconds, spread=0.2, trouble=trouble), clock, Random(2)
    )
    held = limit(64)
    batch = BatchTraffic(clock, engine, held, timeout=60.0)
    clock.at(0.0, batch.send)
    clock.run(30.0)
    assert held.current > 50
    clock.run(42.0)
    assert held.current <= 32


def test_responses_that_a_busy_worker_delays_for_a_moment_do_not_raise_the_limit() -> None:
    hiccups = tuple(Disturbance(at + 0.5, at + 1.5, 40, 3.0) for at in range(60, 300, 4))
    clock = Clock()
    engine = BackendSimulation(
        BackendModel(slots=40, seconds=0.165, spread=0.2, trouble=hiccups), clock, Random(2)
    )
    held = limit(100)
    batch = BatchTraffic(clock, engine, held, timeout=60.0)
    clock.at(0.0, batch.send)
    limits: list[int] = []
    for second in range(60, 300):
        clock.run(float(second))
        limits.append(held.current)
    assert mean(limits) < 50  # 46 without hiccups


def test_a_backend_that_lost_capacity_without_refusals_gets_less() -> None:
    backend = Backend(limit(64), slots=64)
    backend.answer(20)
    backend.slots = 16
    backend.answer(20)
    assert backend.limit.current <= 28


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("seconds", [0.15, 5.0, 30.0])
def test_answers_of_very_different_length_cost_an_engine_with_room_at_most_3_percent(
    seconds: float, seed: int
) -> None:
    clock, rng = Clock(), Random(seed)
    engine = BackendSimulation(BackendModel(slots=256, seconds=seconds, spread=1.0), clock, rng)
    held, total, steps = limit(64), 0, 400
    batch = BatchTraffic(clock, engine, held, timeout=3600.0)
    clock.at(0.0, batch.send)
    for step in range(steps):
        clock.run((step + 1) * 300 * seconds / steps)
        total += held.current
    assert total / steps >= 0.97 * 64


@pytest.mark.parametrize(
    ("ceiling", "seconds", "seed"), [(64, 1.65, 0), (64, 2.5, 0), (256, 5.0, 1), (256, 50.0, 0)]
)
def test_the_first_and_short_answers_do_not_make_later_ones_look_slow(
    ceiling: int, seconds: float, seed: int
) -> None:
    clock, rng = Clock(), Random(seed)
    engine = BackendSimulation(BackendModel(slots=2 * ceiling, seconds=seconds, spread=1.0), clock, rng)
    held, steps = limit(ceiling), 200
    batch = BatchTraffic(clock, engine, held, timeout=3600.0)
    clock.at(0.0, batch.send)
    total, lowest = 0, ceiling
    for step in range(steps):
        clock.run((step + 1) * 25 * seconds / steps)
        total, lowest = total + held.current, min(lowest, held.current)
    assert total / steps >= 0.97 * ceiling
    assert lowest >= ceiling / 2


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("ceiling", "seconds", "lines"), [(32, 0.165, 3_000), (64, 5.0, 512), (64, 50.0, 384), (128, 5.0, 2_048)]
)
def test_the_long_answers_at_the_end_of_a_batch_do_not_lower_the_limit_of_the_next(
    ceiling: int, seconds: float, lines: int, seed: int
) -> None:
    clock, rng = Clock(), Random(seed)
    engine = BackendSimulation(BackendModel(slots=2 * ceiling, seconds=seconds, spread=1.0), clock, rng)
    held = limit(ceiling)
    total = steps = 0
    for _ in range(6):
        assert held.current == ceiling
        batch = BatchTraffic(clock, engine, held, timeout=3600.0 + 100 * seconds, lines=lines)
        batch.send()
        while len(batch.answered) < lines:
            clock.run(clock.now + seconds / 4)
            if batch.lines:
                total, steps = total + held.current, steps + 1
    assert total / steps >= 0.96 * ceiling


def test_a_backend_that_is_slow_when_a_batch_ends_gets_less_of_the_next() -> None:
    clock = Clock()
    engine = BackendSimulation(BackendModel(slots=16, seconds=1.0, spread=0.5), clock, Random(1))
    held = limit(64)
    for _ in range(4):
        batch = BatchTraffic(clock, engine, held, timeout=3600.0, lines=1_000)
        batch.send()
        while len(batch.answered) < 1_000:
            clock.run(clock.now + 1.0)
    assert held.current <= 32


def test_quick_answers_are_never_called_slow() -> None:
    backend = Backend(limit(16), slots=1, seconds=0.001)
    backend.answer(4000)
    assert backend.changes == []
    assert backend.limit.current == 16
