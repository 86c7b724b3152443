"""An API without keys, and one with keys."""

from collections.abc import AsyncGenerator

import pytest

from tests.fakes.api import ApiFixture, open_api


@pytest.fixture
async def api() -> AsyncGenerator[ApiFixture]:
    async with open_api(webhook_allowed_networks=["127.0.0.0/8"]) as api:
        yield api


@pytest.fixture
async def keyed() -> AsyncGenerator[ApiFixture]:
    async with open_api(auth="api_key") as api:
        yield api
