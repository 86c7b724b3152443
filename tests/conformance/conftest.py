"""The whole stack once, its API in both profiles, and the table at the end."""

from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import ExitStack

import pytest

from batchwright.contracts.openai import Profile
from tests.conformance.contract import Api, Place
from tests.conformance.places import Places
from tests.conformance.verdicts import Tell, table
from tests.e2e.stack import Stack


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")]
    found = table(told for report in reports if report.when == "call" for told in report.user_properties)
    terminalreporter.write_sep("=", "conformance")
    for line in found:
        terminalreporter.write_line(line)


@pytest.fixture
def tell(record_property: Callable[[str, object], None]) -> Tell:
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
    """Where a check runs that says nothing else."""
    return "ordinary"


@pytest.fixture
async def api(profile: Profile, place: Place, places: Places) -> AsyncGenerator[Api]:
    """The API in one profile over a healthy backend."""
    stack, url = places.stack(place), places.url(place, profile)
    await stack.heal()
    async with stack.client(profile.value) as client:
        client.base_url = url + "/v1"
        yield Api(url + "/v1", profile, client, stack)
    await stack.heal()
