"""Interactive calls in flight at each backend, and their use of rates, as an API process reports them."""

import math

import pytest

from batchwright.api.services.calls.interactive_load import InteractiveLoad, InteractiveRates
from batchwright.database.records import BackendLoad
from batchwright.telemetry.metrics import Metrics
from tests.fakes.routing import Clock

A = "http://a"


class Fixture:
    def __init__(self) -> None:
        self.now, self.metrics = 100.0, Metrics()
        self.load = InteractiveLoad(self.metrics, lambda: self.now)

    def report_after(self, seconds: float) -> list[BackendLoad]:
        """Let `seconds` pass, and make a report after each second. Return the last report."""
        until, found = self.now + seconds, list[BackendLoad]()
        while self.now < until:
            self.now += 1.0
            found = self.load.report()
        return found

    def gauge(self) -> float | None:
        labels = {"backend": A}
        return self.metrics.registry.get_sample_value("batchwright_interactive_inflight_requests", labels)


def test_a_backend_without_calls_has_no_load() -> None:
    assert Fixture().load.report() == []


def test_the_mean_follows_the_calls_in_flight_within_seconds() -> None:
    fixture = Fixture()
    with fixture.load.counted(A), fixture.load.counted(A):
        [load] = fixture.report_after(1)
        assert (load.backend, load.in_flight) == (A, 2)
        assert 0 < load.mean < 1
        [load] = fixture.report_after(20)
        assert load.mean == pytest.approx(2, rel=0.05)
        assert fixture.gauge() == 2
    assert fixture.gauge() == 0
    [load] = fixture.report_after(2)
    assert load.in_flight == 0
    assert 0 < load.mean < 2


def test_short_calls_count_for_their_time() -> None:
    fixture, loads = Fixture(), list[BackendLoad]()
    for _ in range(300):
        with fixture.load.counted(A):
            fixture.now += 0.05
        fixture.now += 0.05
        loads = fixture.load.report()
    assert loads[0].mean == pytest.approx(0.5, rel=0.1)


def test_a_backend_that_is_idle_for_long_is_forgotten() -> None:
    fixture = Fixture()
    with fixture.load.counted(A):
        fixture.report_after(10)
    assert fixture.report_after(60) == []
    assert fixture.gauge() is None


def test_a_call_that_has_just_begun_is_load() -> None:
    fixture = Fixture()
    with fixture.load.counted(A):
        assert fixture.load.report() == [BackendLoad(A, 1, 0.0)]


def test_new_use_of_a_rate_counts_as_much_as_its_time_in_the_average_of_five_seconds() -> None:
    clock = Clock()
    rates = InteractiveRates(clock)
    rates.count("blue", "llama", 1)
    rates.count("red", "llama", 0, 100, 50)
    clock.now += 0.5
    weight = 1 - math.exp(-0.5 / 5)
    assert [(each.name, each.requests, each.tokens) for each in rates.report()] == [
        ("blue", pytest.approx(weight * 120), 0),
        ("llama", pytest.approx(weight * 120), pytest.approx(weight * 6_000)),
        ("red", 0, pytest.approx(weight * 12_000)),
    ]


def test_the_use_of_rates_is_an_average_per_minute_and_ends_with_the_calls() -> None:
    clock = Clock()
    rates = InteractiveRates(clock)
    found = rates.report()
    assert found == []
    for _ in range(60):
        rates.count("blue", "llama", 2)
        rates.count("blue", "llama", 0, 100, 100)
        clock.now += 1
        found = rates.report()
    assert [each[:2] for each in found] == [(True, "blue"), (False, "llama")]
    expected = pytest.approx((120.0, 6_000.0), rel=0.001)
    assert [(each.requests, each.tokens) for each in found] == [expected] * 2
    clock.now += 600
    assert rates.report() == []
