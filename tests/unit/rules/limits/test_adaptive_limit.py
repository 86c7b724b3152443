"""The rule that adapts a limit to refusals and timeouts, on a clock that the test sets."""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import pytest

from batchwright.rules.limits.adaptive_limit import AdaptiveLimit
from batchwright.rules.limits.backend_load import LoadSignal
from batchwright.rules.limits.limit_trial import LimitChange
from tests.unit.rules.limits.limited_backend import Backend, limit, refuse


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
    """A gateway to a backend with 128 slots and responses that take one second.

    It rejects a request immediately if `refuses(in_flight_when_sent)` is True. Each second, it gets as many
    requests as the limit allows, but at most `demand`.
    """

    refuses: Callable[[int], bool]
    demand: int = 128
    limit: AdaptiveLimit = field(default_factory=lambda: limit(128))
    limits: list[int] = field(default_factory=list[int])

    def run(self, seconds: int) -> None:
        for second in range(len(self.limits), len(self.limits) + seconds):
            count = min(self.limit.current, self.demand)
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


@pytest.mark.parametrize("share", [0.1, 0.2, 0.3])
@pytest.mark.parametrize("demand", [10, 20, 40])
def test_refusals_that_do_not_depend_on_load_leave_room_for_a_demand_below_the_limit(
    demand: int, share: float
) -> None:
    """The peak is the demand, and after the first refusals only few requests reach it."""
    rng = Random(3)
    gateway = Gateway(lambda in_flight_when_sent: rng.random() < share, demand)
    gateway.run(80)
    assert sum(min(limit, demand) for limit in gateway.limits[-40:]) / 40 > 0.9 * demand


@pytest.mark.parametrize("demand", [10, 20, 40])
def test_refusals_caused_by_load_are_found_even_if_the_demand_is_below_the_limit(demand: int) -> None:
    gateway = Gateway(lambda in_flight_when_sent: in_flight_when_sent > 8, demand)
    gateway.run(100)
    assert 7 < sum(gateway.limits[20:]) / 80 < 10


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


def test_the_limit_is_back_a_dozen_response_times_after_an_outage() -> None:
    gateway = Gateway(lambda in_flight_when_sent: True)
    gateway.run(30)
    assert gateway.limit.current == 1
    gateway.refuses = lambda in_flight_when_sent: False
    gateway.run(12)
    assert gateway.limit.current == 128


def test_after_an_outage_that_took_capacity_the_limit_grows_to_what_is_left_and_is_rarely_refused() -> None:
    gateway = Gateway(lambda in_flight_when_sent: True)
    gateway.run(30)
    refused: list[int] = []

    def refuses(in_flight_when_sent: int) -> bool:
        if in_flight_when_sent > 30:
            refused.append(in_flight_when_sent)
        return in_flight_when_sent > 30

    gateway.refuses = refuses
    gateway.run(20)
    assert 25 < gateway.limit.current < 45
    refused.clear()
    gateway.run(100)
    assert len(refused) < 0.05 * sum(gateway.limits[-100:])
    assert 25 < sum(gateway.limits[-100:]) / 100 < 40


def test_an_engine_that_queues_after_an_outage_still_gets_fewer_requests() -> None:
    backend = Backend(limit(64), slots=64)
    backend.answer(20)
    for _ in range(20):
        backend.now += 1
        refuse(backend.limit, at=backend.now, sent_at=backend.now - 0.1, times=60)
    assert backend.limit.current == 1
    backend.now += 1
    backend.answer(200)
    assert sum(backend.limits[-180:]) / 180 > 62
    backend.slots = 16
    backend.answer(150)
    assert sum(backend.limits[-50:]) / 50 < 32


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


def test_the_limit_never_falls_below_one() -> None:
    held = limit()
    for second in range(100):
        refuse(held, at=second + 0.9, sent_at=second + 0.5)
    assert held.current == 1


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


@pytest.mark.parametrize("are_aborted", [True, False])
def test_first_requests_without_an_outcome_do_not_keep_the_limit_from_recovering(are_aborted: bool) -> None:
    """40 of the first 100 requests get a response. The others are cancelled, or stay in flight for long."""
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


@dataclass
class SharedBackend:
    """A backend some of whose slots are used by direct callers. It refuses requests for which no slot is
    left.

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
        """Let `seconds` pass. Return which part of the slots that direct callers leave free was used on
        average, from 0 to 1.
        """
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
