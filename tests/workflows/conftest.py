"""A house per workflow test."""

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.workflows.house import House, time_skipping_server


@pytest_asyncio.fixture
async def house() -> AsyncIterator[House]:
    async with time_skipping_server() as environment:
        yield House(environment)
