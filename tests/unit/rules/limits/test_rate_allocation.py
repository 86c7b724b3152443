"""Rate limits: which are in effect, how they are divided, and how much of a rate one run of a
slice may use.
"""

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from batchwright.contracts.temporal_names import DISPATCH_QUEUE
from batchwright.rules.limits.rate_allocation import (
    ALL_MODELS,
    MAX_RATE,
    MAX_TURN_LINES,
    MAX_TURN_SECONDS,
    MIN_RATE,
    EffectiveRate,
    Pacing,
    RatesConflict,
    allocate_rates,
    effective_rates,
    pacing_for,
)
from batchwright.settings import SettingsError, load

RATES = st.floats(MIN_RATE, MAX_RATE)
OWN = st.dictionaries(st.sampled_from("abcdef"), st.floats(0.1, 100), max_size=6)


@given(RATES)
def test_a_turn_sends_five_seconds_of_its_rate_but_at_least_a_line_and_at_most_a_small_slice(
    rate: float,
) -> None:
    found, most = pacing_for(rate), MAX_TURN_LINES
    assert 1 <= found.lines <= most
    assert found.lines == 1 or found.lines <= MAX_TURN_SECONDS * rate
    assert found.lines == most or found.lines + 1 > MAX_TURN_SECONDS * rate


@given(RATES)
def test_turns_and_lines_multiply_to_the_rate(rate: float) -> None:
    found = pacing_for(rate)
    assert math.isclose(found.turns_per_second * found.lines, rate)
    assert math.isclose(found.interval_seconds * rate, 1)


@given(RATES, st.floats(0.5, 60))
def test_a_turn_has_no_more_lines_than_it_can_send_in_its_time(rate: float, seconds: float) -> None:
    found = pacing_for(rate, seconds)
    assert (found.lines - 1) * found.interval_seconds <= seconds


@pytest.mark.parametrize(
    ("rate", "lines", "turns"), [(20, 100, 0.2), (0.1, 1, 0.1), (0.5, 2, 0.25), (512, 256, 2)]
)
def test_a_rate_becomes_turns_and_lines(rate: float, lines: int, turns: float) -> None:
    assert pacing_for(rate) == Pacing(rate, lines)
    assert pacing_for(rate).turns_per_second == turns


@given(st.floats(1, 1000), OWN, st.sets(st.sampled_from("abcdefgh")))
def test_own_rates_and_what_is_left_add_up_to_the_rate_over_all(
    over_all: float, own: dict[str, float], served: set[str]
) -> None:
    assume(over_all - sum(own.values()) > MIN_RATE)
    found = allocate_rates(effective_rates({**own, ALL_MODELS: over_all}, {}), served)
    queues = found.queues(served)
    total = sum(queue.lines * queue.turns_per_second for queue in queues.values() if queue)
    assert math.isclose(total, over_all)


@given(st.floats(1, 1000), OWN, st.sampled_from("abcdefgh"), st.booleans())
def test_a_model_is_limited_by_the_queue_of_its_slices(
    over_all: float, own: dict[str, float], model: str, is_limited: bool
) -> None:
    assume(over_all - sum(own.values()) > MIN_RATE)
    rates = effective_rates({**own, ALL_MODELS: over_all if is_limited else 0}, {})
    queue = DISPATCH_QUEUE if is_limited and model not in own else f"inference.{model}"
    found = allocate_rates(rates, [model])
    assert rates.target_queue(model, queue) == ""
    assert found.queues([model])[queue] == found.of(model)
    assert rates.target_queue(model, "inference.x" if queue == DISPATCH_QUEUE else DISPATCH_QUEUE) == queue


def test_without_rates_nothing_is_limited() -> None:
    found = allocate_rates(effective_rates({}, {}), ["a"])
    assert found.queues(["a"]) == {"inference.a": None, DISPATCH_QUEUE: None}
    assert found.of("a") is None


def test_a_change_overrides_the_setting_even_if_it_is_no_limit() -> None:
    rates = effective_rates({ALL_MODELS: 50, "a": 5, "b": 6}, {"a": 0, "c": 7})
    assert rates.entries == {
        ALL_MODELS: EffectiveRate(50),
        "a": EffectiveRate(0, changed=True),
        "b": EffectiveRate(6),
        "c": EffectiveRate(7, changed=True),
    }
    assert rates.is_shared("a")
    assert not rates.is_shared("c")
    assert rates.remainder(["a", "b", "c"]) == 37


def test_unserved_models_take_no_rate() -> None:
    assert effective_rates({ALL_MODELS: 50, "a": 20}, {}).remainder(["b"]) == 50


def test_the_remaining_rate_is_at_least_the_minimum_rate() -> None:
    assert effective_rates({ALL_MODELS: 2 * MIN_RATE, "a": MIN_RATE}, {}).remainder(["a"]) == MIN_RATE
    with pytest.raises(RatesConflict):
        effective_rates({ALL_MODELS: 2 * MIN_RATE, "a": 1.001 * MIN_RATE}, {}).remainder(["a"])


@pytest.mark.parametrize("own", [{"a": 0.1, "b": 0.2}, {"a": 0.4}])
def test_rates_that_leave_nothing_for_other_models_are_a_conflict_that_names_both_values(
    own: dict[str, float],
) -> None:
    with pytest.raises(RatesConflict, match=r"0\.3 requests/s over all .*a: 0\."):
        effective_rates({ALL_MODELS: 0.3, **own}, {}).check_remainder()


def test_settings_that_leave_nothing_for_other_models_are_refused_and_both_are_named() -> None:
    models = {"a": {"requests_per_second": 20}, "b": {"requests_per_second": 30}}
    with pytest.raises(SettingsError, match=r"_REQUESTS_PER_SECOND.*a: 20, b: 30.*BATCHWRIGHT_MODELS"):
        load(models=models, requests_per_second=50)
    assert load(models=models, requests_per_second=51).rates == {ALL_MODELS: 51, "a": 20, "b": 30}
