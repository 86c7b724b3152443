"""A running stack that all tests share, except those that break it."""

from collections.abc import Iterator

import pytest

from tests.e2e.stack import Stack, dev


@pytest.fixture(scope="package")
def shared_stack() -> Iterator[Stack]:
    # A worker on a busy machine must not count as lost: its lines would be sent again.
    with dev(
        "--workers",
        "2",
        BATCHWRIGHT_HEARTBEAT_TIMEOUT_SECONDS="60",
        BATCHWRIGHT_INTERACTIVE_PASSTHROUGH="true",
        BATCHWRIGHT_WEBHOOK_ALLOWED_NETWORKS='["127.0.0.0/8"]',
    ) as stack:
        yield stack


@pytest.fixture
async def stack(shared_stack: Stack) -> Stack:
    """The shared stack. All faults of its simulator have been cleared before."""
    await shared_stack.heal()
    return shared_stack
