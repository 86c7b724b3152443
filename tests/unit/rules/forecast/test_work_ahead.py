"""How much work all owners of a shared capacity have done when the work of one of them is done."""

import pytest

from batchwright.rules.forecast.work_ahead import Share, SharedCapacity


@pytest.mark.parametrize(
    ("work", "weight", "done"),
    [
        (10, 1, 30),  # each has done 10
        (20, 1, 50),  # the first has left its part to the others
        (40, 1, 70),
    ],
)
def test_an_owner_that_is_done_leaves_its_part_to_the_others(work: float, weight: float, done: float) -> None:
    shared = SharedCapacity([Share(1, 10), Share(1, 20), Share(1, 40)])
    assert shared.work_done_when(work, weight) == done


def test_shares_are_by_weight() -> None:
    shared = SharedCapacity([Share(3, 30), Share(1, 30)])
    assert shared.work_done_when(30, 3) == 40
    assert shared.work_done_when(30, 1) == 60


def test_an_owner_without_work_left_waits_for_nothing() -> None:
    assert SharedCapacity([Share(1, 0), Share(1, 5)]).work_done_when(0, 1) == 0
