"""Clients whose batch was rejected because of too many live batches try again later, and not all at the same
time.
"""

import asyncio
import heapq
import itertools
from collections.abc import Callable

import httpx
import openai
import pytest

from batchwright.api.app import build_app
from batchwright.api.client_limits.retry_after import (
    MAX_RETRY_SECONDS,
    MAX_TENANTS,
    MIN_RETRY_SECONDS,
    RetryAfterSpread,
)
from batchwright.api.dependencies import ApiDependencies
from batchwright.api.services.batches.progress_events import BatchEvents
from batchwright.contracts.terms import BatchStatus
from batchwright.rules.ids import new_file_id
from tests.fakes.api import ApiFixture, open_api


class Time:
    """A clock that moves forward only while each of the `count` callers sleeps or is done."""

    def __init__(self, count: int, passed: Callable[[float], None]) -> None:
        self.now = 0.0
        self._count, self._done, self._passed = count, 0, passed
        self._sleepers: list[tuple[float, int, asyncio.Event]] = []
        self._numbers = itertools.count()
        self._changed = asyncio.Condition()

    async def sleep(self, seconds: float) -> None:
        woken = asyncio.Event()
        async with self._changed:
            heapq.heappush(self._sleepers, (self.now + seconds, next(self._numbers), woken))
            self._changed.notify_all()
        await woken.wait()

    async def end(self) -> None:
        async with self._changed:
            self._done += 1
            self._changed.notify_all()

    async def run(self) -> None:
        while True:
            async with self._changed:
                await self._changed.wait_for(lambda: len(self._sleepers) + self._done == self._count)
                if self._done == self._count:
                    return
                self.now, _, woken = heapq.heappop(self._sleepers)
                self._passed(self.now)
                woken.set()


def one_a_second(now: float) -> int:
    return int(now)


def all_after_three_quarters_of_a_minute(now: float) -> int:
    return 100 if now >= 45 else 0


@pytest.mark.parametrize("ended_by", [one_a_second, all_after_three_quarters_of_a_minute])
async def test_default_retries_of_the_official_client_outlast_a_hundred_creates_at_once(
    ended_by: Callable[[float], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_api() as api:
        time = Time(100, lambda now: end_batches(api, ended_by(now)))
        monkeypatch.setattr("openai._base_client.anyio.sleep", time.sleep)
        parts = (api.settings, api.database, api.storage, api.temporal, api.served, api.metrics)
        spread = RetryAfterSpread(lambda: time.now)
        deps = ApiDependencies(*parts, recent_seconds=0, retry_spread=spread)
        app = build_app(deps, BatchEvents(deps))
        http = httpx.AsyncClient(transport=httpx.ASGITransport(app), timeout=None)
        async with openai.AsyncOpenAI(base_url="http://api/v1", api_key="none", http_client=http) as client:  # pyright: ignore[reportArgumentType] - it takes httpx too, its types do not

            async def create() -> None:
                try:
                    await client.batches.create(
                        input_file_id=new_file_id(),
                        endpoint="/v1/chat/completions",
                        completion_window="24h",
                    )
                finally:
                    await time.end()

            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(time.run())
                for _ in range(100):
                    tasks.create_task(create())
        assert len(api.database.rows.batches) == 100


def end_batches(api: ApiFixture, ended: int) -> None:
    """End the first `ended` batches that were created."""
    batches = api.database.rows.batches
    for key in list(batches)[:ended]:
        batches[key] = batches[key].model_copy(update={"status": BatchStatus.COMPLETED})


def test_refusals_are_a_second_apart_for_each_tenant_and_forgotten_as_time_passes() -> None:
    now = [0.0]
    spread = RetryAfterSpread(lambda: now[0])
    assert [spread.next_seconds("blue") for _ in range(3)] == [5, 6, 7]
    assert spread.next_seconds("red") == 5
    now[0] = 2
    assert spread.next_seconds("blue") == 6
    now[0] = 60
    assert spread.next_seconds("blue") == 5


def test_retries_are_spread_and_none_is_later_than_clients_accept() -> None:
    spread = RetryAfterSpread(lambda: 0.0)
    waits = [spread.next_seconds("blue") for _ in range(1000)]
    assert (min(waits), max(waits)) == (MIN_RETRY_SECONDS, MAX_RETRY_SECONDS)
    assert max(waits.count(wait) for wait in set(waits)) < 100


def test_many_refusals_are_forgotten_after_a_minute() -> None:
    now = [0.0]
    spread = RetryAfterSpread(lambda: now[0])
    for _ in range(1000):
        spread.next_seconds("blue")
    now[0] = MAX_RETRY_SECONDS
    assert spread.next_seconds("blue") == MIN_RETRY_SECONDS


def test_tenants_refused_long_ago_are_evicted() -> None:
    spread = RetryAfterSpread(lambda: 0.0)
    for number in range(MAX_TENANTS + 1):
        spread.next_seconds(f"tenant-{number}")
    assert spread.next_seconds("tenant-0") == 5
    assert spread.next_seconds(f"tenant-{MAX_TENANTS}") == 6
