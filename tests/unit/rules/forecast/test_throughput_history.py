"""How long the remaining lines of a batch will take, forecast from its progress so far."""

import pytest

from batchwright.rules.forecast.throughput_history import ThroughputHistory, remaining_seconds


def test_without_lines_left_the_forecast_is_zero() -> None:
    assert remaining_seconds(remaining=0, settled=0, elapsed=50.0, speed=0.0) == 0.0


def test_remaining_lines_take_as_long_as_the_settled_ones() -> None:
    assert remaining_seconds(remaining=30, settled=10, elapsed=5.0, speed=0.0) == 15.0


def test_a_batch_that_waited_long_is_forecast_by_its_current_speed() -> None:
    assert remaining_seconds(remaining=100, settled=10, elapsed=36_000.0, speed=10.0) == 10.0


def test_a_recent_pause_does_not_hide_earlier_progress() -> None:
    assert remaining_seconds(remaining=100, settled=100, elapsed=50.0, speed=0.001) == 50.0


def test_without_any_result_it_takes_as_long_again_as_it_has_waited() -> None:
    assert remaining_seconds(remaining=1, settled=0, elapsed=40.0, speed=0.0) == 40.0


def test_the_first_measurement_has_no_speed() -> None:
    assert ThroughputHistory().record("a", 100, at=10.0) == 0.0


def test_the_speed_is_the_number_settled_between_two_measurements() -> None:
    speeds = ThroughputHistory()
    speeds.record("a", 100, at=10.0)
    speeds.record("b", 0, at=10.0)
    assert speeds.record("a", 150, at=20.0) == 5.0
    assert speeds.record("b", 10, at=20.0) == 1.0


def test_the_speed_follows_recent_progress_and_decays_slowly() -> None:
    speeds = ThroughputHistory()
    speeds.record("a", 0, at=0.0)
    assert speeds.record("a", 1000, at=100.0) == 10.0
    assert speeds.record("a", 1000, at=400.0) == pytest.approx(3.68, abs=0.01)
    assert speeds.record("a", 1000, at=10_000.0) < 0.001


def test_falling_counts_give_no_negative_speed() -> None:
    speeds = ThroughputHistory()
    speeds.record("a", 100, at=0.0)
    assert speeds.record("a", 50, at=10.0) == 0.0


def test_an_ended_batch_is_forgotten() -> None:
    speeds = ThroughputHistory()
    speeds.record("a", 100, at=0.0)
    speeds.retain([])
    assert speeds.record("a", 200, at=10.0) == 0.0
