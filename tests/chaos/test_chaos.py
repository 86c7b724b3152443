"""Short chaos runs: one run only kills processes, two others disturb workers, services and connections.

Another run disturbs nothing. Lines are lost and sent twice on purpose, and the run must report that.
"""

from itertools import islice
from pathlib import Path

import pytest

from tests.chaos.fleet import HEARTBEAT_TIMEOUT_SECONDS, Workers
from tests.chaos.run import UNATTENDED, Size, chaos
from tests.chaos.schedule import KILLS, OF_DISK, OF_S3, Kind, bursts, disturbances, once_each
from tests.chaos.user import User
from tests.chaos.witness import Entry, Witness
from tests.clients import http_client
from tests.e2e.batches import CHAT, chat_line
from tests.e2e.stack import MODELS

SECONDS, LEAST = 40, 2
ON_S3, ON_DISK = 91, 164
WITH_CALLS = Size(callers=1)
OF_KILLS, SMALL = 70, Size(workers=1, lanes=(90, 90, 90))
UNDISTURBED = 2
PARTS = {Kind.KILL_API, Kind.KILL_TEMPORAL, Kind.KILL_POSTGRES}


@pytest.mark.e2e
@pytest.mark.timeout(900)
async def test_kills_of_every_part_lose_nothing() -> None:
    """Each part of the stack is killed once.

    Some kills need a batch in a certain phase. Workers are killed in such a phase only if a batch reaches it.
    """
    messages: list[str] = []
    plan = once_each(OF_KILLS, KILLS)
    report = await chaos(OF_KILLS, 0, messages.append, least=len(plan), plan=plan, size=SMALL)
    assert report.broken == []
    assert report.disturbed.keys() >= PARTS, messages
    assert len(report.verdicts) >= len(SMALL.lanes), messages


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [ON_S3, ON_DISK])
async def test_a_stack_that_is_killed_frozen_and_cut_loses_nothing(seed: int) -> None:
    messages: list[str] = []
    report = await chaos(seed, SECONDS, messages.append, least=LEAST, size=WITH_CALLS)
    assert report.broken == []
    assert report.disturbed.total() >= LEAST, messages
    assert len(report.verdicts) >= 4, messages
    assert report.calls.acknowledged >= 1, messages


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_a_run_counts_lines_that_are_lost_doubled_or_sent_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The user gets files without their first line and with their last line twice.

    At the end, the test sends another request with the id of a settled line to the backend.
    """
    content, repeated = User.content, Witness.repeated

    async def damaged_content(self: User, file_id: str | None) -> str:
        lines = (await content(self, file_id)).splitlines(keepends=True)
        return "".join([*lines[1:], *lines[-1:]])

    async def repeated_after_another_request(self: Witness) -> tuple[list[str], dict[str, Entry]]:
        async with http_client(self.simulator, {"x-request-id": next(iter(self.settled))}) as http:
            (await http.post(CHAT, json=chat_line("again", MODELS[0])["body"])).raise_for_status()
        return await repeated(self)

    monkeypatch.setattr(User, "content", damaged_content)
    monkeypatch.setattr(Witness, "repeated", repeated_after_another_request)
    report = await chaos(UNDISTURBED, 5, print, plan=[], size=Size(workers=1, lanes=(60,), callers=1))
    with_files = [verdict for verdict in report.verdicts if verdict.lines > 1]
    assert with_files
    assert all(verdict.lost >= 1 and verdict.doubled >= 1 for verdict in with_files), report
    assert report.repeated == 1
    assert (report.events.lost, report.calls.lost, report.calls.doubled) == (0, 0, 0)
    assert len(report.broken) >= len(with_files)


@pytest.mark.parametrize("elsewhere", [OF_DISK, OF_S3])
def test_a_schedule_repeats_and_holds_every_kind_of_disturbance(elsewhere: frozenset[Kind]) -> None:
    first, second = disturbances(ON_S3, but=elsewhere), disturbances(ON_S3, but=elsewhere)
    planned = [next(first) for _ in range(400)]
    assert planned == [next(second) for _ in range(400)]
    assert {what.kind for what in planned} == set(Kind) - elsewhere


def test_bursts_repeat_overlap_and_hold_every_kind_of_disturbance_but_the_longest() -> None:
    first, second = bursts(1, UNATTENDED.together), bursts(1, UNATTENDED.together)
    planned = list(islice(first, 400))
    assert planned == list(islice(second, 400))
    assert {len(burst) for burst in planned} == set(range(1, UNATTENDED.together + 1))
    assert {what.kind for burst in planned for what in burst} == set(Kind) - {Kind.LOSE_BACKEND}
    frozen = [what.seconds for burst in planned for what in burst if what.kind is Kind.FREEZE_WORKER]
    assert min(frozen) > HEARTBEAT_TIMEOUT_SECONDS


def test_workers_give_batches_of_schedules_the_heartbeat_timeout_of_the_run(tmp_path: Path) -> None:
    """Workers create these batches, and the API all others."""
    environment = Workers(1, {}, tmp_path).environment
    assert environment["BATCHWRIGHT_HEARTBEAT_TIMEOUT_SECONDS"] == f"{HEARTBEAT_TIMEOUT_SECONDS}"
