"""Division of a limit between the workers for which it holds together."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchwright.rules.limits.limit_shares_of_workers import share_of, share_of_rate


@given(total=st.integers(1, 10_000), workers=st.sets(st.text(max_size=8), min_size=1, max_size=50))
def test_the_shares_of_all_workers_are_equal_within_one_and_add_up_to_the_limit(
    total: int, workers: set[str]
) -> None:
    shares = [share_of(total, worker, workers) for worker in workers]
    assert sum(shares) == total
    assert max(shares) - min(shares) <= 1


@pytest.mark.parametrize("workers", [[], ["other:1"]])
def test_a_worker_that_is_not_in_the_fleet_has_no_share(workers: list[str]) -> None:
    assert share_of(8, "one:1", workers) == 0


@pytest.mark.parametrize("rate", [3, 4, 100, 601])
def test_workers_that_use_a_rate_divide_it_without_a_rest(rate: int) -> None:
    workers = ["a", "b", "c"]
    assert sum(share_of_rate(rate, worker, workers, live=9) for worker in workers) == rate


def test_of_a_rate_below_their_number_workers_use_equal_fractions() -> None:
    assert [share_of_rate(1, worker, "ab", live=2) for worker in "ab"] == [0.5, 0.5]


def test_a_worker_that_begins_to_use_a_rate_waits_until_others_see_it() -> None:
    assert share_of_rate(600, "new", ["a", "b"], live=3) == 0.0


def test_without_users_of_a_rate_each_live_worker_may_begin_with_an_equal_part() -> None:
    assert share_of_rate(600, "new", [], live=3) == 200.0
