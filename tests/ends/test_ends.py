"""Each way in which `make ends` ends a batch, in short: what becomes of it, whatever the machine's speed."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import TypeVar

import pytest
import pytest_asyncio

from tests.ends.cancels import CANCELS
from tests.ends.house import End, House
from tests.ends.house import house as a_house
from tests.ends.windows import WINDOWS

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="module"),
]
LOAD_LINES, WINDOW = 3_000, 8
T = TypeVar("T")
# These have whole-stack tests elsewhere; and the moment of finalization is too short to be met every time:
# tests/integration/test_named_failures.py has it held still.
ELSEWHERE = (
    "running",
    "running_with_some_settled",
    "twice",
    "from_the_api_and_the_command_line_at_once",
    "finalizing_with_all_settled",
)


def here(scenarios: Mapping[str, T]) -> list[T]:
    return [scenario for name, scenario in scenarios.items() if name not in ELSEWHERE]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[House]:
    logs: Path = tmp_path_factory.mktemp("logs")
    async with a_house(logs, LOAD_LINES) as house:
        yield house


@pytest.mark.parametrize("closes", here(WINDOWS))
async def test_a_window_that_closes_ends_the_batch_and_nothing_is_asked_afterwards(
    house: House, closes: Callable[[House, int], Awaitable[tuple[End, float]]]
) -> None:
    await house.ready()
    end, _ = await closes(house, WINDOW)
    assert end.batch.status == "expired"
    assert end.batch.expires_at is not None
    assert end.batch.expired_at is not None
    assert end.batch.expires_at <= end.batch.expired_at
    assert end.last_asked_at is None or end.last_asked_at <= end.seen_at


@pytest.mark.parametrize("cancel", here(CANCELS))
async def test_a_cancel_ends_the_batch_and_loses_no_line(
    house: House, cancel: Callable[[House], Awaitable[tuple[End, float]]]
) -> None:
    await house.ready()
    end, _ = await cancel(house)
    assert end.batch.status == "cancelled"
    assert end.batch.cancelled_at is not None
