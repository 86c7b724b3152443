"""A short run of the chaos harness, with a seed whose schedule meets workers, parts and wires."""

import pytest

from tests.chaos.run import chaos
from tests.chaos.schedule import OF_DISK, OF_S3, Kind, disturbances

SECONDS, LEAST = 40, 2
ON_S3, ON_DISK = 17, 4


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [ON_S3, ON_DISK])
async def test_a_stack_that_is_killed_frozen_and_cut_loses_nothing(seed: int) -> None:
    told: list[str] = []
    report = await chaos(seed, SECONDS, told.append, least=LEAST)
    assert report.broken == []
    assert report.disturbed.total() >= LEAST, told
    assert len(report.verdicts) >= 4, told


@pytest.mark.parametrize("elsewhere", [OF_DISK, OF_S3])
def test_a_schedule_repeats_and_holds_every_kind_of_disturbance(elsewhere: frozenset[Kind]) -> None:
    first, second = disturbances(ON_S3, but=elsewhere), disturbances(ON_S3, but=elsewhere)
    planned = [next(first) for _ in range(400)]
    assert planned == [next(second) for _ in range(400)]
    assert {what.kind for what in planned} == set(Kind) - elsewhere
