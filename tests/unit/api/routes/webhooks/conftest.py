"""An API that may send webhooks to this machine, and allows three webhooks for each tenant."""

from collections.abc import AsyncGenerator

import pytest

from tests.fakes.api import ApiFixture, open_api


@pytest.fixture
async def api() -> AsyncGenerator[ApiFixture]:
    async with open_api(webhook_allowed_networks=["127.0.0.0/8"], max_webhooks=3) as api:
        yield api
