"""Each waiting reason is caused once. The API, the command line and Temporal's Web UI show it."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.timing.places import PLACES, ObservedStack, observed_stack
from tests.timing.waiting_scenarios import REASONS, Scenario

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="module"),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[ObservedStack]:
    logs: Path = tmp_path_factory.mktemp("logs")
    async with observed_stack(logs) as found:
        yield found


@pytest.mark.parametrize("scenario", REASONS.values(), ids=REASONS)
async def test_a_waiting_batch_shows_the_reason_in_every_place(
    stack: ObservedStack, scenario: Scenario
) -> None:
    await stack.ready()
    async with scenario(stack) as wait:
        shown = await stack.first_shown(wait.batch, wait.reasons, ui=wait.ui)
    assert set(shown) == set(PLACES if wait.ui else PLACES[:-1])
