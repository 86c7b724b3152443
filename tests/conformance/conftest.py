"""The whole stack once, its API in both profiles, and the table at the end."""

import os
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Generator
from pathlib import Path

import httpx
import pytest

from batchwright.contracts.openai import Profile
from starter.stack.ports import free_port
from tests.conformance.contract import Api
from tests.conformance.verdicts import Tell, table
from tests.e2e.stack import SETTINGS, Addresses, Stack, dev
from tests.integration.stacks import until


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
def conforming_stack() -> Generator[Stack]:
    with dev("--workers", "1") as stack:
        yield stack


@pytest.fixture(scope="session")
def strict_url(conforming_stack: Stack) -> Generator[str]:
    """A second API of the same stack; a batch carries its profile to the workers."""
    port = free_port()
    environment = {**os.environ, **SETTINGS, **_told(conforming_stack.now), "BATCHWRIGHT_API_PORT": str(port)}
    with subprocess.Popen([sys.executable, "-m", "api"], env=environment) as process:
        url = f"http://127.0.0.1:{port}"
        until(lambda: _answers(url), 60)
        yield url
        process.terminate()
        process.wait(30)


def _told(addresses: Addresses) -> dict[str, str]:
    settings = {
        "database_url": addresses.postgres,
        "temporal_address": addresses.temporal,
        "temporal_namespace": addresses.namespace,
        "storage_dir": str(Path(addresses.data) / "objects"),
        "backends": f'["{addresses.simulator}"]',
        "profile": Profile.STRICT.value,
    }
    return {f"BATCHWRIGHT_{name.upper()}": value for name, value in settings.items()}


def _answers(url: str) -> bool:
    try:
        return httpx.get(url + "/readyz").status_code == 200 and bool(
            httpx.get(url + "/v1/models").json()["data"]
        )
    except httpx.TransportError:
        return False


@pytest.fixture
async def api(
    profile: Profile, conforming_stack: Stack, request: pytest.FixtureRequest
) -> AsyncGenerator[Api]:
    """The API in one profile over a healthy backend."""
    await conforming_stack.heal()
    strict = profile is Profile.STRICT
    url: str = request.getfixturevalue("strict_url") if strict else conforming_stack.now.api
    async with conforming_stack.client(profile.value) as client:
        client.base_url = url + "/v1"
        yield Api(url + "/v1", profile, client, conforming_stack)
    await conforming_stack.heal()
