"""Durations of requests, and how long the slowest of several in flight takes."""

import math
from random import Random

import pytest

from batchwright.rules.forecast.request_durations import RequestDurations, longest_remaining
from batchwright.rules.worker_stats import UpstreamTraffic


def totals(durations: list[float], backend: str = "b") -> UpstreamTraffic:
    return UpstreamTraffic(
        model="m",
        backend=backend,
        requests=len(durations),
        seconds=sum(durations),
        squared_seconds=sum(each * each for each in durations),
    )


def test_mean_and_variation_are_those_of_all_backends() -> None:
    found = RequestDurations()
    found.record(totals([1.0] * 500), 0)
    found.record(totals([3.0] * 500, backend="c"), 0)
    assert found.mean == 2.0
    assert found.variation == pytest.approx(0.25, abs=0.1)


def test_new_requests_count_more_than_old_ones() -> None:
    found = RequestDurations()
    found.record(totals([1.0] * 1000), 0)
    found.record(totals([1.0] * 1000 + [5.0] * 100), 3600)
    assert found.mean == pytest.approx(5.0, rel=0.1)


def test_an_ended_worker_changes_nothing() -> None:
    """The totals no longer contain the requests of the ended worker, so they are lower than before."""
    found = RequestDurations()
    found.record(totals([1.0] * 100), 0)
    found.record(totals([9.0] * 10), 15)
    assert found.mean == 1.0


def test_without_requests_the_mean_is_not_known() -> None:
    assert RequestDurations().mean == 0.0


def test_requests_of_equal_length_have_ended_after_about_that_time() -> None:
    """The estimate is a little higher, because it assumes that durations vary."""
    found = RequestDurations()
    found.record(totals([4.0] * 1_000_000), 0)
    assert 4.0 < longest_remaining(found, 64, 0.9) < 8.0
    assert longest_remaining(found, 1, 0.5) == pytest.approx(2.0, rel=0.2)


def test_the_slowest_of_many_uneven_requests_is_that_of_a_simulation() -> None:
    """64 requests are in flight. Their durations are lognormal, and the first ones began long ago."""
    random = Random(1)
    durations = [random.lognormvariate(0.0, 1.0) for _ in range(20_000)]
    found = RequestDurations()
    found.record(totals(durations), 0)
    slowest: list[float] = []
    for _ in range(300):
        biased = random.choices(durations, weights=durations, k=64)  # a long request is in flight more often
        slowest.append(max(each * random.random() for each in biased))
    slowest.sort()
    assert longest_remaining(found, 64, 0.5) == pytest.approx(slowest[150], rel=0.25)
    assert math.isfinite(longest_remaining(found, 1e6, 0.9))
