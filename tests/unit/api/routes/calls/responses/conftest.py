"""The API of the tests of /v1/responses."""

from collections.abc import AsyncGenerator

import pytest

from tests.fakes.api import ApiFixture, open_api


@pytest.fixture
async def api() -> AsyncGenerator[ApiFixture]:
    async with open_api() as api:
        yield api
