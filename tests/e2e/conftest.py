"""One stack for all tests that do not break it."""

from collections.abc import Iterator

import pytest

from tests.e2e.stack import Stack, dev


@pytest.fixture(scope="session")
def shared_stack() -> Iterator[Stack]:
    with dev("--workers", "2") as stack:
        yield stack


@pytest.fixture
async def stack(shared_stack: Stack) -> Stack:
    """The shared stack with a healthy simulator."""
    await shared_stack.heal()
    return shared_stack
