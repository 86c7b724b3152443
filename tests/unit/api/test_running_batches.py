"""Searches for batches without a row in Temporal: their number is limited for each tenant."""

import asyncio
from datetime import UTC, datetime

import pytest

from batchwright.api.errors import ApiError
from batchwright.api.running_batches import UNKNOWN_PER_MINUTE, RunningBatches
from batchwright.rules.ids import new_batch_id
from batchwright.settings import load
from batchwright.temporal import TemporalUnavailable
from tests.fakes.gateway import MemoryGateway


class SearchFixture:
    """A search, and a clock that stands still until a test moves it."""

    def __init__(self) -> None:
        self.temporal, self.seconds = MemoryGateway(), 0.0
        self.batches = RunningBatches(self.temporal, load(), lambda: datetime.now(UTC), lambda: self.seconds)

    async def search(self, count: int, tenant: str = "acme") -> None:
        for _ in range(count):
            assert await self.batches.order(tenant, new_batch_id()) is None


async def test_a_tenant_that_searches_many_unknown_batches_has_to_wait() -> None:
    fixture = SearchFixture()
    await fixture.search(UNKNOWN_PER_MINUTE)
    with pytest.raises(ApiError) as refused:
        await fixture.search(1)
    assert (refused.value.status, refused.value.headers["Retry-After"]) == (429, "1")
    assert len(fixture.temporal.lookups) == UNKNOWN_PER_MINUTE
    fixture.seconds = 1.0
    await fixture.search(1)


async def test_searches_that_temporal_does_not_answer_are_not_counted() -> None:
    fixture = SearchFixture()
    fixture.temporal.failing = TemporalUnavailable("no response")
    for _ in range(UNKNOWN_PER_MINUTE + 1):
        with pytest.raises(TemporalUnavailable):
            await fixture.search(1)


async def test_a_tenant_does_not_wait_for_the_searches_of_another() -> None:
    fixture = SearchFixture()
    await fixture.search(UNKNOWN_PER_MINUTE)
    await fixture.search(UNKNOWN_PER_MINUTE, tenant="globex")


async def test_repeated_searches_for_one_batch_are_one_request_to_temporal_in_ten_seconds() -> None:
    fixture, batch_id = SearchFixture(), new_batch_id()
    searches = [fixture.batches.order("acme", batch_id) for _ in range(20)]
    assert await asyncio.gather(*searches) == [None] * 20
    assert await fixture.batches.order("acme", batch_id) is None
    assert fixture.temporal.lookups == [batch_id]
    fixture.seconds = 10.0
    assert await fixture.batches.order("acme", batch_id) is None
    assert fixture.temporal.lookups == [batch_id] * 2
