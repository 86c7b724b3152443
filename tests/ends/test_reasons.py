"""Each reason why a batch waits, brought about: the API, the command line and Temporal's Web UI say it."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.ends.places import PLACES, Place
from tests.ends.places import place as a_place
from tests.ends.reasons import REASONS, Scenario

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="module"),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def place(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Place]:
    logs: Path = tmp_path_factory.mktemp("logs")
    async with a_place(logs) as place:
        yield place


@pytest.mark.parametrize("scenario", REASONS.values(), ids=REASONS)
async def test_a_batch_that_waits_says_why_in_every_place(place: Place, scenario: Scenario) -> None:
    await place.ready()
    async with scenario(place) as wait:
        seen = await place.seen(wait.batch, wait.reasons, ui=wait.ui)
    assert set(seen) == set(PLACES if wait.ui else PLACES[:-1])
