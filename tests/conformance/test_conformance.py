"""The contract, row by row, with the official clients against the running stack in both profiles."""

from pathlib import Path

import pytest

from batchwright.contracts.terms import Profile
from tests.conformance.contract import Api, Place, Row
from tests.conformance.fuzzing import SECONDS, fuzz
from tests.conformance.node_client import NODE_ROWS, install, verdicts
from tests.conformance.table import PAGE, checks, page
from tests.conformance.verdicts import VERDICT, Record, recorded_verdict
from tests.e2e.stack import Stack

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


def cases() -> list[tuple[Profile, Place, Row]]:
    return [(profile, row.place, row) for row in checks() for profile in row.profiles]


def name_of(value: Profile | Place | Row) -> str:
    return f"{value.area}: {value.rule}" if isinstance(value, Row) else value


@pytest.mark.parametrize(("profile", "place", "row"), cases(), ids=name_of)
async def test_the_python_client_can_rely_on(profile: Profile, row: Row, api: Api, record: Record) -> None:
    with recorded_verdict(record, row, profile):
        await checks()[row](api)


@pytest.mark.parametrize("profile", Profile)
async def test_the_node_client_can_rely_on_every_rule_of_its_suite(
    profile: Profile, api: Api, record: Record
) -> None:
    install()
    found = await verdicts(api)
    for row, verdict in zip(NODE_ROWS, found, strict=False):
        record(VERDICT, (*row[:3], profile.value, verdict.error is None))
    assert [verdict.rule for verdict in found] == [row.rule for row in NODE_ROWS]
    assert [verdict for verdict in found if verdict.error is not None] == []


@pytest.mark.timeout(SECONDS + 600)
def test_every_route_answers_as_its_description_says(conforming_stack: Stack, tmp_path: Path) -> None:
    code, report = fuzz(conforming_stack.now.api, tmp_path)
    assert code == 0, report
    print(report)


def test_the_table_of_the_reference_is_up_to_date() -> None:
    assert PAGE.read_text() == page(), "run `make docs`"
