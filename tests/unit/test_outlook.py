"""Whether a batch will be done in time."""

import pytest

from batchwright.rules.outlook import Speeds, remaining_seconds


def test_nothing_left_takes_no_time() -> None:
    assert remaining_seconds(left=0, settled=0, elapsed=50.0, speed=0.0) == 0.0


def test_what_is_left_takes_as_long_as_what_was_done() -> None:
    assert remaining_seconds(left=30, settled=10, elapsed=5.0, speed=0.0) == 15.0


def test_a_batch_that_waited_long_and_runs_now_is_judged_by_its_speed_now() -> None:
    assert remaining_seconds(left=100, settled=10, elapsed=36_000.0, speed=10.0) == 10.0


def test_a_pause_of_late_does_not_hide_what_was_done_before() -> None:
    assert remaining_seconds(left=100, settled=100, elapsed=50.0, speed=0.001) == 50.0


def test_without_any_result_it_takes_as_long_again_as_it_has_waited() -> None:
    assert remaining_seconds(left=1, settled=0, elapsed=40.0, speed=0.0) == 40.0


def test_a_first_look_knows_no_speed() -> None:
    assert Speeds().look("a", 100, at=10.0) == 0.0


def test_a_speed_is_what_settled_between_two_looks() -> None:
    speeds = Speeds()
    speeds.look("a", 100, at=10.0)
    speeds.look("b", 0, at=10.0)
    assert speeds.look("a", 150, at=20.0) == 5.0
    assert speeds.look("b", 10, at=20.0) == 1.0


def test_a_speed_follows_what_happens_now_and_forgets_slowly() -> None:
    speeds = Speeds()
    speeds.look("a", 0, at=0.0)
    assert speeds.look("a", 1000, at=100.0) == 10.0
    assert speeds.look("a", 1000, at=400.0) == pytest.approx(3.68, abs=0.01)
    assert speeds.look("a", 1000, at=10_000.0) < 0.001


def test_counts_that_fall_back_are_no_negative_speed() -> None:
    speeds = Speeds()
    speeds.look("a", 100, at=0.0)
    assert speeds.look("a", 50, at=10.0) == 0.0


def test_a_batch_that_is_gone_is_forgotten() -> None:
    speeds = Speeds()
    speeds.look("a", 100, at=0.0)
    speeds.keep([])
    assert speeds.look("a", 200, at=10.0) == 0.0
