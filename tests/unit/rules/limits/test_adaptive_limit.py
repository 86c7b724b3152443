"""The rule that adapts a limit, on a clock that the test sets."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from statistics import mean

import pytest

from batchwright.rules.limits.adaptive_limit import AdaptiveLimit, LimitBounds
from batchwright.rules.limits.backend_load import LoadSignal
from batchwright.rules.limits.limit_trial import LimitChange
from batchwright.rules.limits.response_meter import LatencyBaseline, MeasurementWindow, ResponseMeter
from bench.limits.backend import BackendModel, BackendSimulation, Clock, Disturbance
from bench.limits.simulation import BatchTraffic


@dataclass
class Backend:
    """Backend that works in rounds. All allowed requests arrive at once, and `slots` of them run together."""

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


@dataclass
class Recorded:
    """Adaptive limit that records its changes."""

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


def limit(ceiling: int = 100, floor: int = 1) -> AdaptiveLimit:
    return AdaptiveLimit(LimitBounds(floor, ceiling), 0.0)


def refuse(limit: AdaptiveLimit, *, at: float, sent_at: float, times: int = 1) -> list[int]:
    seen: list[int] = []
    for _ in range(times):
        limit.on_complete(
            LoadSignal.REJECTED, sent_at=sent_at, now=at, in_flight=100, in_flight_when_sent=100
        )
        seen.append(limit.current)
    return seen


def test_the_limit_starts_at_its_ceiling() -> None:
    assert limit(37).current == 37


def test_concurrent_refusals_lower_the_limit_by_their_number() -> None:
    assert refuse(limit(), at=10.0, sent_at=9.9, times=5) == [99, 98, 97, 96, 95]


def test_refusals_of_one_instant_are_one_signal_and_lower_it_to_70_percent_at_most() -> None:
    assert refuse(limit(), at=10.0, sent_at=9.9, times=90)[-1] == 70


def test_refusals_of_requests_sent_before_the_limit_fell_do_not_lower_it_again() -> None:
    held = limit()
    refuse(held, at=10.0, sent_at=9.9, times=40)
    assert refuse(held, at=60.0, sent_at=9.95, times=3) == [70] * 3
    assert refuse(held, at=61.0, sent_at=60.5, times=40)[-1] == 49


@dataclass
class Gateway:
    """Gateway to a backend with 128 slots and responses that take one second.

    It rejects a request at once if `refuses(in_flight_when_sent)` is True.
    """

    refuses: Callable[[int], bool]
    limit: AdaptiveLimit = field(default_factory=lambda: limit(128))
    limits: list[int] = field(default_factory=list[int])

    def run(self, seconds: int) -> None:
        for second in range(seconds):
            count = self.limit.current
            refused = [place for place in range(1, count + 1) if self.refuses(place)]
            for signal, places, took in (
                (LoadSignal.REJECTED, refused, 0.02),
                (LoadSignal.RESPONDED, sorted({*range(1, count + 1)} - {*refused}), 1.0),
            ):
                for place in places:
                    sent = float(second)
                    self.limit.on_complete(
                        signal, sent_at=sent, now=sent + took, in_flight=count, in_flight_when_sent=place
                    )
            self.limits.append(self.limit.current)


@pytest.mark.parametrize("share", [0.01, 0.05, 0.2, 0.3])
def test_refusals_that_do_not_depend_on_load_do_not_lower_the_limit(share: float) -> None:
    rng = Random(3)
    gateway = Gateway(lambda in_flight_when_sent: rng.random() < share)
    gateway.run(200)
    assert sum(gateway.limits[20:]) / 180 > 100


def test_refusals_caused_by_load_end_and_do_not_become_the_baseline() -> None:
    gateway = Gateway(lambda in_flight_when_sent: in_flight_when_sent > 30)
    gateway.run(200)
    assert 20 < sum(gateway.limits[20:]) / 180 < 45


def test_a_gateway_that_refuses_some_and_then_loses_capacity_gets_less() -> None:
    rng = Random(3)
    gateway = Gateway(lambda in_flight_when_sent: rng.random() < 0.1)
    gateway.run(50)
    gateway.refuses = lambda in_flight_when_sent: in_flight_when_sent > 20 or rng.random() < 0.1
    gateway.run(100)
    assert sum(gateway.limits[-50:]) / 50 < 40


def test_the_limit_recovers_from_its_floor_even_if_some_are_still_refused() -> None:
    rng = Random(3)
    gateway = Gateway(lambda in_flight_when_sent: True)
    gateway.run(30)
    assert gateway.limit.current == 1
    gateway.refuses = lambda in_flight_when_sent: rng.random() < 0.25
    gateway.run(300)
    assert sum(gateway.limits[-50:]) / 50 > 60


def test_a_backend_that_mostly_refuses_gets_few_requests() -> None:
    rng = Random(3)
    gateway = Gateway(lambda in_flight_when_sent: rng.random() < 0.7)
    gateway.run(100)
    assert sum(gateway.limits[-50:]) / 50 < 20


def test_a_timeout_weighs_more_than_a_refusal() -> None:
    held = limit()
    assert (
        held.on_complete(LoadSignal.TIMED_OUT, sent_at=1.0, now=10.0, in_flight=100, in_flight_when_sent=100)
        is LimitChange.TIMED_OUT
    )
    assert held.current == 50


def test_the_limit_never_falls_below_its_floor() -> None:
    held = limit(floor=3)
    for second in range(100):
        refuse(held, at=second + 0.9, sent_at=second + 0.5)
    assert held.current == 3


def test_a_limit_that_was_not_reached_is_lowered_from_the_number_in_flight() -> None:
    held = limit()
    for _ in range(20):
        held.on_complete(LoadSignal.REJECTED, sent_at=9.9, now=10.0, in_flight=20, in_flight_when_sent=20)
    assert held.current == 14


@pytest.mark.parametrize("signal", [LoadSignal.NEUTRAL, LoadSignal.ANSWERED])
def test_outcomes_without_a_signal_change_nothing(signal: LoadSignal) -> None:
    held = limit()
    assert held.on_complete(signal, sent_at=0.0, now=500.0, in_flight=100, in_flight_when_sent=100) is None
    assert held.current == 100


def test_the_limit_recovers_within_seconds_after_a_short_refusal() -> None:
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
    assert LimitChange.DECREASE_PROBE in backend.changes


def test_a_backend_that_becomes_slow_without_a_queue_keeps_its_requests() -> None:
    backend = Backend(limit(60), slots=1000)
    backend.answer(20)
    backend.seconds = 5.0
    backend.answer(30)
    slow = backend.changes.index(LimitChange.SLOW)
    assert LimitChange.PROBE_REVERTED in backend.changes[slow:]
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


def test_a_slow_moment_before_a_pause_does_not_count_for_the_next_load() -> None:
    meter = ResponseMeter(0.0)
    meter.window = MeasurementWindow(1.0, slow_since=0.0)
    meter.pause_until(5.0)
    assert meter.window.slow_since == math.inf


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


@pytest.mark.parametrize("are_aborted", [True, False])
def test_first_requests_without_an_outcome_do_not_keep_the_limit_from_recovering(are_aborted: bool) -> None:
    """40 of 100 first requests get a response. The others are cancelled, or stay in flight for long."""
    held = limit()
    backend = Backend(held)
    for _ in range(40):
        backend.report(LoadSignal.RESPONDED, 1.0, 0.0, 100)
    if are_aborted:
        for _ in range(60):
            held.on_aborted(0.0, 1.0)
    backend.now = 2.0
    backend.answer(20)
    for second in range(20):
        refuse(held, at=backend.now + second, sent_at=backend.now + second - 0.1, times=50)
    assert held.current < 5
    backend.now += 20
    backend.answer(600)
    assert held.current > 50


def test_a_baseline_of_many_windows_does_not_follow_the_lowest_of_them() -> None:
    baseline, rng = LatencyBaseline(), Random(1)
    lowest = 0.0
    for _ in range(500):
        baseline.end_window(rng.gauss(0.0, 0.2), 0.2)
        lowest = min(lowest, baseline.baseline or 0.0)
    assert lowest > -0.2


def test_a_baseline_follows_a_backend_that_became_faster_within_a_few_windows() -> None:
    baseline = LatencyBaseline()
    for level in [0.0] * 3 + [-2.0] * 5:
        baseline.end_window(level, 0.1)
    assert baseline.baseline == pytest.approx(-1.9, abs=0.2)


def test_quick_answers_are_never_called_slow() -> None:
    backend = Backend(limit(16), slots=1, seconds=0.001)
    backend.answer(4000)
    assert backend.changes == []
    assert backend.limit.current == 16


def test_long_answers_after_short_ones_are_no_slowdown() -> None:
    baseline = LatencyBaseline()
    for _ in range(5):
        levels = [baseline.record(kind, seconds) for kind, seconds in [("short", 0.1), ("long", 3.0)] * 10]
        baseline.end_window(sum(levels) / len(levels))
    only_long = [baseline.record("long", 3.0) for _ in range(10)]
    assert 0.8 < baseline.slowdown(sum(only_long) / 10) < 1.25


def test_the_kinds_that_are_remembered_are_bounded() -> None:
    baseline = LatencyBaseline()
    for kind in range(5000):
        baseline.record(kind, 1.0)
        baseline.end_window(0.0)
    assert len(vars(baseline)["_offsets"]) <= 512


@dataclass
class SharedBackend:
    """Backend whose direct callers use some of its slots, and that refuses all further requests at once.

    Time passes in steps of a twentieth of a response, and as many requests are sent as the limit allows.
    """

    slots: int
    direct: int
    answer: LoadSignal = LoadSignal.RESPONDED
    limit: AdaptiveLimit = field(default_factory=limit)
    now: float = 0.0
    sent_at: list[float] = field(default_factory=list[float])
    refused: int = 0

    def run(self, seconds: float) -> float:
        """Return the mean fraction of the slots left by direct callers that requests used."""
        used = list[float]()
        while len(used) < seconds / 0.05:
            self.now += 0.05
            for sent_at in [at for at in self.sent_at if self.now - at >= 1.0]:
                self.report(self.answer, sent_at)
                self.sent_at.remove(sent_at)
            while len(self.sent_at) < self.limit.current:
                self.sent_at.append(self.now)
                if len(self.sent_at) + self.direct > self.slots:
                    self.refused += 1
                    self.report(LoadSignal.BUSY, self.now)
                    self.sent_at.pop()
            used.append(len(self.sent_at) / (self.slots - self.direct))
        return sum(used) / len(used)

    def report(self, signal: LoadSignal, sent_at: float) -> None:
        count = len(self.sent_at)
        self.limit.on_complete(
            signal, sent_at=sent_at, now=self.now, in_flight=count, in_flight_when_sent=count
        )


def test_requests_use_the_slots_that_direct_callers_leave() -> None:
    backend = SharedBackend(slots=32, direct=12)
    assert backend.run(60) > 0.9
    assert backend.refused < 60 * 20  # fewer than there are responses


@pytest.mark.parametrize("answer", [LoadSignal.RESPONDED, LoadSignal.ANSWERED])
def test_slots_that_direct_callers_leave_again_are_found_in_the_time_of_ten_responses(
    answer: LoadSignal,
) -> None:
    backend = SharedBackend(slots=64, direct=63, answer=answer)
    backend.run(20)
    backend.direct = 0
    backend.run(10)
    assert backend.run(1) > 0.9


def test_busy_refusals_leave_at_least_one_request() -> None:
    backend = SharedBackend(slots=8, direct=8)
    backend.limit.on_complete(LoadSignal.BUSY, sent_at=0.0, now=0.1, in_flight=1, in_flight_when_sent=1)
    assert backend.limit.current == 1
