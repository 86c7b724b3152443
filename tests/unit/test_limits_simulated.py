"""In-flight limits at an engine in trouble: ours against fixed ones and plain additive increase."""

from collections.abc import Callable

import pytest

from bench.limits.limits import LIMITS, SHARED, Limit
from bench.limits.scenarios import CAPACITY_LOSS, CROWDED, FLAKY, INTERACTIVE, SLOW
from bench.limits.simulation import Result, Scenario, runs

MANY = pytest.mark.slow
SEEDS = [pytest.param(range(1)), pytest.param(range(100, 105), marks=MANY)]
CHOICES: dict[str, Callable[[], Limit]] = {**LIMITS, **SHARED}


def result(scenario: Scenario, limit: str, seeds: range) -> Result:
    return runs(scenario, CHOICES[limit], seeds)


@pytest.mark.parametrize("seeds", SEEDS)
def test_after_a_loss_of_capacity_more_is_answered_and_less_refused(seeds: range) -> None:
    ours = result(CAPACITY_LOSS, "ours", seeds)
    too_many = result(CAPACITY_LOSS, "fixed, 128", seeds)
    additive = result(CAPACITY_LOSS, "additive increase", seeds)
    assert ours.goodput > additive.goodput + 0.05
    assert ours.goodput > too_many.goodput + 0.2
    assert ours.refused < too_many.refused / 20
    assert ours.recovery < additive.recovery


@pytest.mark.parametrize("seeds", SEEDS)
def test_a_crowded_engine_without_errors_gets_less_and_wastes_nothing(seeds: range) -> None:
    ours = result(CROWDED, "ours", seeds)
    too_many = result(CROWDED, "fixed, 128", seeds)
    additive = result(CROWDED, "additive increase", seeds)
    assert ours.in_trouble > too_many.in_trouble + 0.2
    assert ours.timed_out < additive.timed_out < too_many.timed_out
    assert ours.queue < additive.queue < too_many.queue


@pytest.mark.parametrize("seeds", SEEDS)
def test_a_slow_engine_with_room_keeps_its_requests(seeds: range) -> None:
    ours = result(SLOW, "ours", seeds)
    gradient = result(SLOW, "latency gradient", seeds)
    too_few = result(SLOW, "fixed, 64", seeds)
    assert ours.goodput > 0.9
    assert ours.in_trouble > gradient.in_trouble + 0.4
    assert ours.goodput > too_few.goodput + 0.3


@pytest.mark.parametrize("seeds", SEEDS)
def test_people_who_share_the_engine_are_held_up_less(seeds: range) -> None:
    right, ours = result(INTERACTIVE, "fixed, 64", seeds), result(INTERACTIVE, "ours", seeds)
    fraction = result(INTERACTIVE, "ours, capacity_fraction 0.25", seeds)
    assert ours.held_up < right.held_up * 0.75
    assert ours.goodput > right.goodput * 0.85
    assert fraction.held_up < 0.05


@pytest.mark.parametrize("seeds", SEEDS)
def test_a_gateway_that_refuses_some_whatever_is_in_flight_is_used_all_the_same(seeds: range) -> None:
    ours = result(FLAKY, "ours", seeds)
    additive = result(FLAKY, "additive increase", seeds)
    assert ours.goodput > 0.9
    assert ours.goodput > additive.goodput + 0.5
