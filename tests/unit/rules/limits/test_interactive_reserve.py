"""Division of a limit between batches and interactive calls."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchwright.rules.limits.interactive_reserve import (
    interactive_share,
    left_to_batches,
    places_for_interactive_calls,
)


@given(rate=st.integers(2, 10_000), used=st.lists(st.floats(0, 20_000), min_size=1, max_size=5))
def test_batches_and_interactive_calls_together_keep_a_rate(rate: int, used: list[float]) -> None:
    total = sum(used)
    of_calls = interactive_share(rate, total, processes=len(used))
    assert left_to_batches(rate, of_calls + min(total, rate)) >= rate / 10
    alone = interactive_share(rate, 0.0, processes=0)
    assert left_to_batches(rate, alone) + alone <= rate
    assert alone / (len(used) + 1) <= of_calls <= alone
    assert of_calls + total <= alone + 0.001 or of_calls == alone / (len(used) + 1)


def test_a_rate_of_one_request_per_minute_allows_an_interactive_call() -> None:
    assert interactive_share(1, 0.0, processes=0) == 1


@pytest.mark.parametrize(
    ("mean", "in_flight", "kept"), [(0.0, 0, 0), (16.0, 16, 18), (16.0, 22, 18), (16.0, 40, 36), (4.0, 0, 5)]
)
def test_places_are_kept_free_for_the_mean_of_calls_with_a_margin_and_for_growth(
    mean: float, in_flight: int, kept: int
) -> None:
    assert places_for_interactive_calls(mean, in_flight) == kept
