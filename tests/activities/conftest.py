"""Runs tests that use the fixture `skipped_waits` on an event loop in which waiting takes no real time."""

import asyncio
import time
from collections.abc import Callable, Mapping

import pytest

from tests.activities.skipping_loop import SkippingLoop


def pytest_asyncio_loop_factories(
    item: pytest.Item,
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    marks = item.iter_markers("usefixtures")
    if any("skipped_waits" in mark.args for mark in marks):
        return {"skipping": SkippingLoop}
    return {"plain": asyncio.new_event_loop}


@pytest.fixture
async def skipped_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the process's clocks by the event loop's clock, which jumps forward instead of waiting.

    Event loops in other threads keep the real clocks. Such an event loop may belong to a server that earlier
    tests started and that later tests use. With the clock that jumps, the server's timers would be set hours
    too late.
    """
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SkippingLoop)
    monkeypatch.setattr(time, "monotonic", loop.monotonic)
    monkeypatch.setattr(time, "time", loop.wall)
    monkeypatch.setattr(time, "clock_gettime", loop.clock_gettime)
