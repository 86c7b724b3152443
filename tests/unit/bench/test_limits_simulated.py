"""Limits on requests in flight at a disturbed engine: our limit, compared with fixed limits and with AIMD."""

from collections.abc import Callable

import pytest

from bench.limits.algorithms import LIMITS, SHARED, LimitAlgorithm
from bench.limits.scenarios import CAPACITY_LOSS, CROWDED, FLAKY, INTERACTIVE, SLOW
from bench.limits.simulation import LimitResult, Scenario, runs

MANY = pytest.mark.slow
SEEDS = [pytest.param(range(1)), pytest.param(range(100, 105), marks=MANY)]
CHOICES: dict[str, Callable[[], LimitAlgorithm]] = {**LIMITS, **SHARED}


def result(scenario: Scenario, limit: str, seeds: range) -> LimitResult:
    return runs(scenario, CHOICES[limit], seeds)


@pytest.mark.parametrize("seeds", SEEDS)
def test_after_a_loss_of_capacity_more_is_answered_and_less_refused(seeds: range) -> None:
    ours = result(CAPACITY_LOSS, "adaptive", seeds)
    too_many = result(CAPACITY_LOSS, "fixed, 128", seeds)
    additive = result(CAPACITY_LOSS, "additive increase", seeds)
    assert ours.goodput > additive.goodput + 0.05
    assert ours.goodput > too_many.goodput + 0.2
    assert ours.refused < too_many.refused / 20
    assert ours.recovery < additive.recovery


@pytest.mark.parametrize("seeds", SEEDS)
def test_a_crowded_engine_without_errors_gets_less_and_wastes_nothing(seeds: range) -> None:
    ours = result(CROWDED, "adaptive", seeds)
    too_many = result(CROWDED, "fixed, 128", seeds)
    additive = result(CROWDED, "additive increase", seeds)
    assert ours.in_trouble > too_many.in_trouble + 0.2
    assert ours.timed_out < additive.timed_out < too_many.timed_out
    assert ours.queue < additive.queue < too_many.queue


@pytest.mark.parametrize("seeds", SEEDS)
def test_a_slow_engine_with_room_keeps_its_requests(seeds: range) -> None:
    ours = result(SLOW, "adaptive", seeds)
    gradient = result(SLOW, "latency gradient", seeds)
    too_few = result(SLOW, "fixed, 64", seeds)
    assert ours.goodput > 0.9
    assert ours.in_trouble > gradient.in_trouble + 0.4
    assert ours.goodput > too_few.goodput + 0.3


@pytest.mark.parametrize("seeds", SEEDS)
def test_interactive_users_of_the_same_engine_are_delayed_less(seeds: range) -> None:
    right, ours = result(INTERACTIVE, "fixed, 64", seeds), result(INTERACTIVE, "adaptive", seeds)
    fraction = result(INTERACTIVE, "adaptive, capacity_fraction 0.25", seeds)
    assert ours.held_up < right.held_up * 0.75
    assert ours.goodput > right.goodput * 0.85
    assert fraction.held_up < 0.05


@pytest.mark.parametrize("seeds", SEEDS)
def test_a_gateway_that_refuses_some_requests_at_any_load_is_still_used(seeds: range) -> None:
    ours = result(FLAKY, "adaptive", seeds)
    additive = result(FLAKY, "additive increase", seeds)
    assert ours.goodput > 0.9
    assert ours.goodput > additive.goodput + 0.5
