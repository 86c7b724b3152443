"""A short run of the chaos harness, with a seed whose schedule meets workers, parts and wires."""

import pytest

from tests.chaos.run import chaos
from tests.chaos.schedule import Kind, disturbances

SECONDS, SEED = 40, 17


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_a_stack_that_is_killed_frozen_and_cut_loses_nothing() -> None:
    told: list[str] = []
    report = await chaos(SEED, SECONDS, told.append)
    assert report.broken == []
    assert report.disturbed.total() >= 2, told
    assert len(report.verdicts) >= 4, told


def test_a_schedule_repeats_and_holds_every_kind_of_disturbance() -> None:
    first, second = disturbances(SEED), disturbances(SEED)
    planned = [next(first) for _ in range(300)]
    assert planned == [next(second) for _ in range(300)]
    assert {what.kind for what in planned} == set(Kind)
