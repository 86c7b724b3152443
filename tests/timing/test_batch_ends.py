"""Short versions of all scenarios of `make timing`. They check that batches end correctly, but not how fast.

The backend answers only the requests of one model, so no batch ends before a deadline or a cancel ends it.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import pytest
import pytest_asyncio

from tests.e2e.stack import MODELS
from tests.timing.cancels import CANCELS
from tests.timing.deadlines import WINDOWS, with_no_worker_at_all, with_no_worker_for_its_models
from tests.timing.deadlines import Scenario as DeadlineScenario
from tests.timing.loaded_stack import End, LoadedStack, WindowTooShort
from tests.timing.loaded_stack import loaded_stack as a_loaded

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="module"),
]
LOAD_LINES, WINDOW = 3_000, 8
# For the scenarios that need a result before the window closes. The longer ones are for a machine under load.
LONGER_WINDOWS = (15, 45, 180)
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
async def loaded(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[LoadedStack]:
    logs: Path = tmp_path_factory.mktemp("logs")
    async with a_loaded(logs, LOAD_LINES, held=MODELS[1:]) as loaded:
        yield loaded


async def ended_in(closes: DeadlineScenario, loaded: LoadedStack, windows: Sequence[int]) -> End:
    """Run the scenario with the first of the completion windows that is long enough for this machine."""
    *shorter, longest = windows
    for window in shorter:
        with suppress(WindowTooShort):
            return (await closes(loaded, window))[0]
    return (await closes(loaded, longest))[0]


@pytest.mark.parametrize("closes", here(WINDOWS))
async def test_the_deadline_ends_the_batch_and_no_request_is_sent_afterwards(
    loaded: LoadedStack, closes: DeadlineScenario
) -> None:
    await loaded.ready()
    needs_result = closes in (with_no_worker_for_its_models, with_no_worker_at_all)
    end = await ended_in(closes, loaded, LONGER_WINDOWS if needs_result else (WINDOW,))
    assert end.batch.status == "expired"
    assert end.batch.expires_at is not None
    assert end.batch.expired_at is not None
    assert end.batch.expires_at <= end.batch.expired_at
    assert end.last_request_at is None or end.last_request_at <= end.seen_at


@pytest.mark.parametrize("cancel", here(CANCELS))
async def test_a_cancel_ends_the_batch_and_loses_no_line(
    loaded: LoadedStack, cancel: Callable[[LoadedStack], Awaitable[tuple[End, float]]]
) -> None:
    await loaded.ready()
    end, _ = await cancel(loaded)
    assert end.batch.status == "cancelled"
    assert end.batch.cancelled_at is not None
