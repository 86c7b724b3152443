"""The event loop in which waiting takes no real time: which code sees its clock."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

_HOUR = 3600.0


async def times() -> dict[str, float]:
    """Return the time by each of the process's clocks, and by the running event loop."""
    return {
        "monotonic": time.monotonic(),
        "time": time.time(),
        "clock_gettime": time.clock_gettime(time.CLOCK_MONOTONIC),
        "loop": asyncio.get_running_loop().time(),
    }


@pytest.mark.usefixtures("skipped_waits")
async def test_event_loops_in_other_threads_keep_the_real_clocks() -> None:
    before = await times()
    await asyncio.sleep(_HOUR)
    with ThreadPoolExecutor(1) as threads:
        elsewhere = threads.submit(asyncio.run, times()).result()
    after = await times()
    assert [name for name in before if after[name] - before[name] < _HOUR] == []
    assert [name for name in before if elsewhere[name] - before[name] > _HOUR / 2] == []


@pytest.mark.usefixtures("skipped_waits")
async def test_threads_without_an_event_loop_see_the_clock_of_the_test() -> None:
    before = time.monotonic()
    await asyncio.sleep(_HOUR)
    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(lambda: time.monotonic()).result() >= before + _HOUR
