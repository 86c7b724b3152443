"""Fixtures for the tests of workflows."""

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.workflows.fixture import WorkflowFixture, time_skipping_server


@pytest_asyncio.fixture
async def fixture() -> AsyncIterator[WorkflowFixture]:
    async with time_skipping_server() as environment:
        yield WorkflowFixture(environment)
