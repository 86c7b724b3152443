"""Rates: what is in effect, how it is shared out, what a turn may send of it."""

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from batchwright.contracts.names import DISPATCH_QUEUE
from batchwright.rules.rates import (
    ALL_MODELS,
    LEAST,
    MOST,
    TURN_LINES,
    TURN_SECONDS,
    Pacing,
    Rate,
    RatesConflict,
    effective,
    pacing,
    split,
)
from batchwright.settings import SettingsError, load

RATES = st.floats(LEAST, MOST)
SLICE_LINES = st.integers(1, 10_000)
OWN = st.dictionaries(st.sampled_from("abcdef"), st.floats(0.1, 100), max_size=6)


@given(RATES, SLICE_LINES)
def test_a_turn_sends_five_seconds_of_its_rate_but_at_least_a_line_and_at_most_a_small_slice(
    rate: float, slice_lines: int
) -> None:
    found, most = pacing(rate, slice_lines), min(slice_lines, TURN_LINES)
    assert 1 <= found.lines <= most
    assert found.lines == 1 or found.lines <= TURN_SECONDS * rate
    assert found.lines == most or found.lines + 1 > TURN_SECONDS * rate


@given(RATES, SLICE_LINES)
def test_turns_times_lines_are_the_rate(rate: float, most: int) -> None:
    found = pacing(rate, most)
    assert math.isclose(found.turns_per_second * found.lines, rate)
    assert math.isclose(found.interval_seconds * rate, 1)


@given(RATES, st.floats(0.5, 60))
def test_a_turn_does_not_have_more_to_send_than_its_time_is_good_for(rate: float, seconds: float) -> None:
    found = pacing(rate, 10_000, seconds)
    assert (found.lines - 1) * found.interval_seconds <= seconds


@pytest.mark.parametrize(
    ("rate", "lines", "turns"), [(20, 100, 0.2), (0.1, 1, 0.1), (0.5, 2, 0.25), (512, 256, 2)]
)
def test_what_a_rate_becomes(rate: float, lines: int, turns: float) -> None:
    assert pacing(rate, 256) == Pacing(rate, lines)
    assert pacing(rate, 256).turns_per_second == turns


@given(st.floats(1, 1000), OWN, st.sets(st.sampled_from("abcdefgh")))
def test_own_rates_and_what_is_left_add_up_to_the_rate_over_all(
    over_all: float, own: dict[str, float], served: set[str]
) -> None:
    assume(over_all - sum(own.values()) > LEAST)
    found = split(effective({**own, ALL_MODELS: over_all}, {}), served, 256)
    queues = found.queues(served)
    total = sum(queue.lines * queue.turns_per_second for queue in queues.values() if queue)
    assert math.isclose(total, over_all)


@given(st.floats(1, 1000), OWN, st.sampled_from("abcdefgh"), st.booleans())
def test_a_model_is_limited_by_the_queue_where_its_slices_belong(
    over_all: float, own: dict[str, float], model: str, is_limited: bool
) -> None:
    assume(over_all - sum(own.values()) > LEAST)
    rates = effective({**own, ALL_MODELS: over_all if is_limited else 0}, {})
    queue = DISPATCH_QUEUE if is_limited and model not in own else f"inference.{model}"
    found = split(rates, [model], 256)
    assert rates.elsewhere(model, queue) == ""
    assert found.queues([model])[queue] == found.of(model)
    assert rates.elsewhere(model, "inference.x" if queue == DISPATCH_QUEUE else DISPATCH_QUEUE) == queue


def test_without_rates_nothing_is_limited() -> None:
    found = split(effective({}, {}), ["a"], 256)
    assert found.queues(["a"]) == {"inference.a": None, DISPATCH_QUEUE: None}
    assert found.of("a") is None


def test_a_change_stands_before_the_setting_also_one_to_no_limit() -> None:
    rates = effective({ALL_MODELS: 50, "a": 5, "b": 6}, {"a": 0, "c": 7})
    assert rates.entries == {
        ALL_MODELS: Rate(50),
        "a": Rate(0, changed=True),
        "b": Rate(6),
        "c": Rate(7, changed=True),
    }
    assert rates.is_shared("a")
    assert not rates.is_shared("c")
    assert rates.left(["a", "b", "c"]) == 37


def test_models_that_nobody_serves_take_nothing() -> None:
    assert effective({ALL_MODELS: 50, "a": 20}, {}).left(["b"]) == 50


def test_what_is_left_may_be_the_least_that_a_rate_can_be_and_no_less() -> None:
    assert effective({ALL_MODELS: 2 * LEAST, "a": LEAST}, {}).left(["a"]) == LEAST
    with pytest.raises(RatesConflict):
        effective({ALL_MODELS: 2 * LEAST, "a": 1.001 * LEAST}, {}).left(["a"])


@pytest.mark.parametrize("own", [{"a": 0.1, "b": 0.2}, {"a": 0.4}])
def test_rates_that_leave_nothing_are_a_conflict_that_names_both_sides(own: dict[str, float]) -> None:
    with pytest.raises(RatesConflict, match=r"0\.3 requests/s over all .*a: 0\."):
        effective({ALL_MODELS: 0.3, **own}, {}).check()


def test_settings_that_leave_nothing_are_refused_naming_both() -> None:
    models = {"a": {"requests_per_second": 20}, "b": {"requests_per_second": 30}}
    with pytest.raises(SettingsError, match=r"_REQUESTS_PER_SECOND.*a: 20, b: 30.*BATCHWRIGHT_MODELS"):
        load(models=models, requests_per_second=50)
    assert load(models=models, requests_per_second=51).rates == {ALL_MODELS: 51, "a": 20, "b": 30}
