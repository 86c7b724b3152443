"""An API without keys, and one with keys. Each also exists as one for which no time passes."""

from collections.abc import AsyncGenerator

import pytest

from tests.clocks import stop_time_of_limiters
from tests.fakes.api import ApiFixture, open_api, open_own_api


@pytest.fixture
async def api() -> AsyncGenerator[ApiFixture]:
    async with open_api(webhook_allowed_networks=["127.0.0.0/8"]) as api:
        yield api


@pytest.fixture
async def keyed() -> AsyncGenerator[ApiFixture]:
    async with open_api(auth="api_key") as api:
        yield api


@pytest.fixture
async def api_in_one_instant(monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[ApiFixture]:
    """An API of its own. For its limits, all requests of the test come at the same time."""
    stop_time_of_limiters(monkeypatch)
    async with open_own_api(webhook_allowed_networks=["127.0.0.0/8"]) as api:
        yield api


@pytest.fixture
async def keyed_in_one_instant(monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[ApiFixture]:
    """The same with keys."""
    stop_time_of_limiters(monkeypatch)
    async with open_own_api(auth="api_key") as api:
        yield api
