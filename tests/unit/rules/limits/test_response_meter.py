"""The measurement of response times, and the baseline to which they are compared."""

import math
from random import Random

import pytest

from batchwright.rules.limits.response_meter import LatencyBaseline, MeasurementWindow, ResponseMeter


def test_a_slow_moment_before_a_pause_does_not_count_for_the_next_load() -> None:
    meter = ResponseMeter(0.0)
    meter.window = MeasurementWindow(1.0, slow_since=0.0)
    meter.pause_until(5.0)
    assert meter.window.slow_since == math.inf


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
