"""Short chaos runs: one run only kills processes, two others disturb workers, services and connections."""

import pytest

from tests.chaos.run import Size, chaos
from tests.chaos.schedule import KILLS, OF_DISK, OF_S3, Kind, disturbances, once_each

SECONDS, LEAST = 40, 2
ON_S3, ON_DISK = 91, 164
OF_KILLS, SMALL = 70, Size(workers=1, at_once=3, largest=90)
PARTS = {Kind.KILL_API, Kind.KILL_TEMPORAL, Kind.KILL_POSTGRES}


@pytest.mark.e2e
@pytest.mark.timeout(900)
async def test_kills_of_every_part_lose_nothing() -> None:
    """Each part is killed once.

    Workers are also killed, if a batch reaches the phase in which they are to be killed.
    """
    messages: list[str] = []
    plan = once_each(OF_KILLS, KILLS)
    report = await chaos(OF_KILLS, 0, messages.append, least=len(plan), plan=plan, size=SMALL)
    assert report.broken == []
    assert report.disturbed.keys() >= PARTS, messages
    assert len(report.verdicts) >= SMALL.at_once, messages


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [ON_S3, ON_DISK])
async def test_a_stack_that_is_killed_frozen_and_cut_loses_nothing(seed: int) -> None:
    messages: list[str] = []
    report = await chaos(seed, SECONDS, messages.append, least=LEAST)
    assert report.broken == []
    assert report.disturbed.total() >= LEAST, messages
    assert len(report.verdicts) >= 4, messages


@pytest.mark.parametrize("elsewhere", [OF_DISK, OF_S3])
def test_a_schedule_repeats_and_holds_every_kind_of_disturbance(elsewhere: frozenset[Kind]) -> None:
    first, second = disturbances(ON_S3, but=elsewhere), disturbances(ON_S3, but=elsewhere)
    planned = [next(first) for _ in range(400)]
    assert planned == [next(second) for _ in range(400)]
    assert {what.kind for what in planned} == set(Kind) - elsewhere
