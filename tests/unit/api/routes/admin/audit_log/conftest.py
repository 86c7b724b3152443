"""An API without keys, and an API with keys. Both also exist with rate limiters whose clock stands still."""

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
    """An API without keys that no other test uses. Its rate limiters see all requests at the same time."""
    stop_time_of_limiters(monkeypatch)
    async with open_own_api(webhook_allowed_networks=["127.0.0.0/8"]) as api:
        yield api


@pytest.fixture
async def keyed_in_one_instant(monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[ApiFixture]:
    """An API with keys that no other test uses. Its rate limiters see all requests at the same time."""
    stop_time_of_limiters(monkeypatch)
    async with open_own_api(auth="api_key") as api:
        yield api
