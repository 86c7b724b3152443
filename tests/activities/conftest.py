"""Files that ask for `skipped_waits` run on a loop on which no pause takes time."""

import asyncio
import time
from collections.abc import Callable, Mapping

import pytest

from tests.activities.skipping import SkippingLoop


def pytest_asyncio_loop_factories(
    item: pytest.Item,
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    marks = item.iter_markers("usefixtures")
    if any("skipped_waits" in mark.args for mark in marks):
        return {"skipping": SkippingLoop}
    return {"plain": asyncio.new_event_loop}


@pytest.fixture
async def skipped_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clocks of the process go with the loop's."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SkippingLoop)
    monkeypatch.setattr(time, "monotonic", loop.time)
    monkeypatch.setattr(time, "time", loop.wall)
