"""Fixtures: the stacks and APIs on which the checks run.

At the end of a run, the results are printed as a table.
"""

from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import ExitStack

import pytest

from batchwright.contracts.terms import Profile
from tests.conformance.contract import Api, Place
from tests.conformance.places import Places
from tests.conformance.verdicts import Record, table
from tests.e2e.stack import Stack


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")]
    found = table(
        verdict for report in reports if report.when == "call" for verdict in report.user_properties
    )
    terminalreporter.write_sep("=", "conformance")
    for line in found:
        terminalreporter.write_line(line)


@pytest.fixture
def record(record_property: Callable[[str, object], None]) -> Record:
    return record_property


@pytest.fixture(scope="session")
def places() -> Generator[Places]:
    with ExitStack() as opened:
        yield Places(opened)


@pytest.fixture(scope="session")
def conforming_stack(places: Places) -> Stack:
    return places.stack("ordinary")


@pytest.fixture
def place() -> Place:
    """The kind of stack on which a check runs. A test can override this fixture."""
    return "ordinary"


@pytest.fixture
async def api(profile: Profile, place: Place, places: Places) -> AsyncGenerator[Api]:
    """The running API in one profile (relaxed or strict). All faults of its simulated backend have been
    cleared before.
    """
    stack, url = places.stack(place), places.url(place, profile)
    await stack.heal()
    async with stack.client(profile.value) as client:
        client.base_url = url + "/v1"
        yield Api(url + "/v1", profile, client, stack)
    await stack.heal()
